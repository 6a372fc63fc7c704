"""The bound that no plan can beat: by hand, beside the planners' plans, and against the exact linear program's dual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm_coordinator.planner.bound import (
    best_seconds_per_sample,
    round_bound_seconds,
)
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan

from .instances import make_instance


def profile_of(seconds: Sequence[float]) -> DeviceProfile:
    """Forward and backward take as long, in proportion to the batch."""
    return DeviceProfile((1,), (tuple(seconds),), (tuple(seconds),))


def instance_of(*profiles: DeviceProfile, mini_batch: int) -> PlanningInstance:
    """Devices a, b, ... with these profiles."""
    plain = make_instance((1.0,) * profiles[0].layer_count, slower=(1.0,) * len(profiles), mini_batch=mini_batch)
    return replace(plain, profiles=dict(zip(plain.profiles, profiles, strict=True)))


def test_devices_that_differ_by_a_factor_do_the_sum_of_what_they_do_alone() -> None:
    instance = instance_of(profile_of([2.0, 4.0]), profile_of([1.0, 2.0]), mini_batch=12)
    # Forward and backward of both layers take 12 and 6 seconds a sample.
    assert round_bound_seconds(instance) == pytest.approx(12 / (1 / 12 + 1 / 6))


def test_each_does_what_it_is_better_at() -> None:
    """Layer 0 takes 1 and 4 seconds a sample, layer 1 takes 4 and 1: a round of 10 can't take less than 10 seconds."""
    bound = round_bound_seconds(instance_of(profile_of([0.5, 2.0]), profile_of([2.0, 0.5]), mini_batch=10))
    assert bound == pytest.approx(10.0, rel=0.01)
    assert bound <= 10.0 * (1 + 1e-12)


def test_the_best_batch_size_counts() -> None:
    profile = DeviceProfile((1, 4, 8), ((1.0,), (2.0,), (8.0,)), ((1.0,), (2.0,), (8.0,)))
    assert best_seconds_per_sample(profile, 8) == pytest.approx([1.0])  # 4 seconds for 4 samples
    assert best_seconds_per_sample(profile, 2) == pytest.approx([8 / 3 / 2])


costs = st.lists(st.floats(0.01, 10), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(costs, costs, st.integers(2, 16))
def test_no_split_of_the_work_beats_it(a: list[float], b: list[float], mini_batch: int) -> None:
    """All ways to give each layer's samples in quarters to two devices."""
    instance = instance_of(profile_of(a), profile_of(b), mini_batch=mini_batch)
    parts = np.stack(np.meshgrid(*[np.linspace(0, 1, 5)] * 3), axis=-1).reshape(-1, 3)
    seconds_a = parts @ (2 * np.array(a)) * mini_batch
    seconds_b = (1 - parts) @ (2 * np.array(b)) * mini_batch
    assert round_bound_seconds(instance) <= np.maximum(seconds_a, seconds_b).min() * (1 + 1e-9)


@pytest.mark.parametrize("planner", sorted(set(PLANNERS) - {"exhaustive"}))
def test_no_plan_beats_it(planner: str) -> None:
    instance = instance_of(profile_of([0.5, 2.0, 1.0]), profile_of([2.0, 0.5, 1.0]), mini_batch=16)
    plan = make_plan(instance, planner)
    assert plan.predicted is not None
    assert plan.predicted.round_seconds >= round_bound_seconds(instance)


def test_a_model_that_takes_no_time() -> None:
    assert round_bound_seconds(instance_of(profile_of([0.0]), mini_batch=4)) == 0.0
