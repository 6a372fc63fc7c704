"""What is expected of more samples at once than were measured, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import DeviceProfile
from edgeswarm_coordinator.planner.beyond_measured import GROWTH_OF_A_DOUBLING, most_beyond, slower_beyond
from edgeswarm_coordinator.planner.planners import make_plan

from .instances import make_instance


def profile(*largest: int) -> DeviceProfile:
    """Layers of 1, 1 and 2 seconds a sample, forward and backward alike."""
    row = (1.0, 1.0, 2.0)
    return DeviceProfile((1, 2), (row, tuple(2 * each for each in row)), (row, row), largest_measured=largest)


def test_nothing_is_added_to_what_was_measured_or_of_which_nothing_is_told() -> None:
    samples = np.array([0, 1, 8, 64])
    assert slower_beyond(profile(64, 64, 64), samples, first_layer=0, end_layer=3).tolist() == [1.0] * 4
    assert slower_beyond(profile(), samples, first_layer=0, end_layer=3).tolist() == [1.0] * 4


def test_each_layer_counts_by_its_seconds_and_doublings() -> None:
    # At 16 samples the third layer takes half the seconds; it was measured to 4, two doublings before.
    factor = slower_beyond(profile(16, 16, 4), np.array([4, 8, 16, 32]), first_layer=0, end_layer=3)
    each = GROWTH_OF_A_DOUBLING / 2
    assert factor.tolist() == pytest.approx([1, 1 + each, 1 + 2 * each, 1 + each + 3 * each])
    assert slower_beyond(profile(16, 16, 4), np.array([16]), first_layer=0, end_layer=2).tolist() == [1.0]


def test_of_a_plan_the_most_counts() -> None:
    instance = make_instance(slower=(1.0, 4.0), mini_batch=20)
    measured = {
        kind: replace(known, largest_measured=(4 if kind == "class-a" else 8,) * known.layer_count)
        for kind, known in instance.profiles.items()
    }
    stage = Stage(0, 4, {"a": 16, "b": 4}, 1)
    plan = Plan("by hand", 20, 1, (stage,))
    known = replace(instance, profiles=measured)
    assert most_beyond(known, plan) == pytest.approx(1 + GROWTH_OF_A_DOUBLING * math.log2(16 / 4))
    assert most_beyond(known, replace(plan, stages=(replace(stage, passes={"a": 4}),))) == 1.0


def test_a_plan_takes_no_more_at_once_than_was_measured_where_that_costs_nothing() -> None:
    instance = make_instance(slower=(1.0, 1.0), mini_batch=20)
    assert make_plan(instance).stages[0].passes_of("a") == 1
    measured = {
        kind: replace(known, largest_measured=(4,) * known.layer_count) for kind, known in instance.profiles.items()
    }
    (stage,) = make_plan(replace(instance, profiles=measured)).stages
    assert stage.at_once("a") <= 4
