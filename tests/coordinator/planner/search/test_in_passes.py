"""Shares in passes: by hand where curves are lines, and within memory whatever the instance."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.moved_shares import moved_shares
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.search.in_passes import MOST_PASSES, plan_in_passes
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ..instances import instances, make_instance, whole_instances

# 4 layers of 100 bytes of parameters, thrice; 4 x 50 bytes for each sample at once.
WEIGHTS, SAMPLE = 1200, 200


def test_a_device_whose_memory_holds_no_share_at_once_takes_it_in_passes() -> None:
    instance = make_instance(slower=(1.0, 4.0), memory_bytes=(WEIGHTS + 5 * SAMPLE, 10**9), mini_batch=20)
    plan = plan_in_passes(instance)
    assert plan is not None
    (stage,) = plan.stages
    assert plan.micro_batches == 1
    assert stage.shares == {"a": 16, "b": 4}
    assert stage.passes == {"a": 4, "b": 1}
    assert plan.predicted is not None
    assert plan.predicted.round_seconds == pytest.approx(16 * 12.0, rel=1e-3)
    assert plan_memory_bytes(instance, plan)["a"] == WEIGHTS + 4 * SAMPLE
    # The planner finds it, too: micro-batches of 5 leave the slow device a fourth of the time to wait.
    chosen = make_plan(instance)
    assert chosen.predicted is not None
    assert chosen.predicted.round_seconds <= plan.predicted.round_seconds


def test_a_pass_is_as_large_as_suits_the_curve() -> None:
    """Up to 4 samples cost as much as 4; from there on each costs twice what it did."""
    instance = make_instance(slower=(1.0,), mini_batch=12)
    rows = tuple((seconds,) * 4 for seconds in (4.0, 4.0, 12.0))
    profile = DeviceProfile((1, 4, 8), rows, rows)
    plan = plan_in_passes(replace(instance, profiles={"class-a": profile}))
    assert plan is not None
    assert plan.stages[0].passes == {"a": 3}
    assert plan.predicted is not None
    assert plan.predicted.round_seconds == pytest.approx(3 * 4 * 8.0)


def test_who_takes_longer_for_the_optimizers_step_gets_fewer_samples() -> None:
    """By two: a sample takes 12 seconds, the step 24."""
    instance = make_instance(slower=(1.0, 1.0), bandwidth=1e12, mini_batch=20)
    slow_step = replace(instance.profiles["class-b"], update_seconds=(6.0,) * 4)
    plan = plan_in_passes(replace(instance, profiles={**instance.profiles, "class-b": slow_step}))
    assert plan is not None
    assert plan.stages[0].shares == {"a": 11, "b": 9}


def test_few_passes_are_taken_where_more_bring_nothing() -> None:
    plan = plan_in_passes(make_instance(slower=(1.0, 1.0), mini_batch=20))
    assert plan is not None
    assert plan.stages[0].passes == {"a": 1, "b": 1}


def test_fewer_passes_are_taken_where_the_all_reduce_then_hides_behind_the_last() -> None:
    """Small passes are a little quicker; but the all-reduce goes on beside the last one's backward alone."""
    rows = tuple((seconds,) * 4 for seconds in (3.0, 6.1, 12.4))
    curve = DeviceProfile((3, 6, 12), rows, rows)
    passes = {}
    for bandwidth in (1e9, 200_000.0):
        instance = make_instance(slower=(1.0, 1.0), param_bytes=1_000_000, bandwidth=bandwidth, mini_batch=24)
        plan = plan_in_passes(replace(instance, profiles=dict.fromkeys(instance.profiles, curve)))
        assert plan is not None
        passes[bandwidth] = set(plan.stages[0].passes.values())
    assert passes == {1e9: {4}, 200_000.0: {2}}


def test_a_slow_kind_that_only_costs_stays_idle() -> None:
    instance = make_instance(slower=(1.0, 100.0), param_bytes=10_000, bandwidth=10.0, mini_batch=8)
    plan = plan_in_passes(instance)
    assert plan is not None
    assert plan.devices == ("a",)
    assert [idle.name for idle in plan.idle] == ["b"]


def test_no_pass_is_below_the_least_batch() -> None:
    instance = make_instance(
        slower=(1.0, 1.0), memory_bytes=(WEIGHTS + 3 * SAMPLE, WEIGHTS + 3 * SAMPLE), least_batch=2, mini_batch=14
    )
    plan = plan_in_passes(instance)
    assert plan is not None
    assert plan.stages[0].shares == {"a": 7, "b": 7}
    assert plan.stages[0].passes == {"a": 3, "b": 3}


def test_none_where_memory_holds_no_sample() -> None:
    assert plan_in_passes(make_instance(slower=(1.0,), memory_bytes=[WEIGHTS])) is None


def test_a_fixed_micro_batch_is_kept() -> None:
    instance = make_instance(slower=(1.0, 4.0), memory_bytes=(WEIGHTS + 5 * SAMPLE, 10**9), mini_batch=20)
    assert make_plan(instance, micro_batch=5).micro_batch == 5


def test_shares_that_move_take_their_passes_along() -> None:
    instance = make_instance(slower=(1.0, 1.0), memory_bytes=(WEIGHTS + 6 * SAMPLE, 10**9), mini_batch=24)
    plan = plan_in_passes(instance)
    assert plan is not None
    assert plan.stages[0].passes == {"a": 2, "b": 1}
    moved = moved_shares(instance, plan, {"a": 12 * 12.0, "b": 3 * 12 * 12.0})
    assert moved is not None
    assert moved.plan.stages[0].shares == {"a": 18, "b": 6}
    assert moved.plan.stages[0].passes == {"a": 3, "b": 1}


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(instance=st.one_of(instances(), whole_instances()))
def test_whatever_is_planned_fits(instance: PlanningInstance) -> None:
    plan = plan_in_passes(instance)
    if plan is None:
        return
    (stage,) = plan.stages
    assert stage.samples == instance.training.mini_batch
    assert all(1 <= passes <= MOST_PASSES for passes in stage.passes.values())
    budgets = {device.name: device.memory_bytes for device in instance.devices}
    for device, used in plan_memory_bytes(instance, plan).items():
        assert used <= budgets[device]
    assert plan.predicted is not None
    assert plan.predicted.round_seconds == round_seconds(instance, plan)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(instance=instances(), seed=st.integers(0, 99))
def test_the_order_of_the_devices_changes_nothing(instance: PlanningInstance, seed: int) -> None:
    names = list(instance.device_names)
    random.Random(seed).shuffle(names)
    plan, other = plan_in_passes(instance), plan_in_passes(instance.only(names))
    assert (plan is None) == (other is None)
    if plan is not None and other is not None:
        assert plan.stages == other.stages
