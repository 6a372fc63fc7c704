"""Other planners and other devices: a plan, or why there is none."""

from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm_coordinator.planner.alternatives import of_changes, of_planners
from edgeswarm_coordinator.planner.planners import comparison_planners

from .instances import make_instance


def test_each_planner_gives_its_own_plan() -> None:
    single, parallel = of_planners(make_instance(slower=(1.0, 1.0)), ["single", "data-parallel"], micro_batch=8)
    assert single.predicted is not None
    assert parallel.predicted is not None
    assert single.plan is not None
    assert len(single.plan.devices) == 1
    assert parallel.predicted.round_seconds < single.predicted.round_seconds
    assert Plan.from_json(parallel.to_json()["plan"]) == parallel.plan


def test_where_none_fits_it_says_why() -> None:
    (alone,) = of_planners(make_instance(memory_bytes=[900, 900]), ["single"])
    assert alone.plan is None
    assert "too little" in alone.problem
    assert alone.to_json() == {"name": "single", "problem": alone.problem}


def test_changes_each_alone() -> None:
    instance = make_instance(slower=(1.0, 1.0))
    gone, more = of_changes(instance, ["-b", "+b"], planner="asteroid")
    assert gone.plan is not None
    assert gone.plan.devices == ("a",)
    assert more.plan is not None
    assert set(more.plan.devices) == {"a", "b", "b+2"}


def test_what_a_change_assumes_stands_beside_its_plan() -> None:
    certain, assumed = of_changes(make_instance(slower=(1.0,)), ["a.memory=1GiB", "+a"], planner="single")
    assert certain.assumptions == ()
    assert "assumptions" not in certain.to_json()
    assert "1000 Mbit/s" in assumed.to_json()["assumptions"][0]


def test_a_change_that_cannot_be_is_an_error() -> None:
    with pytest.raises(EdgeswarmError, match="no such device"):
        of_changes(make_instance(), ["-z"], planner="asteroid")


def test_a_planner_that_would_take_too_long_is_left_out_and_says_so() -> None:
    (asteroid,) = of_planners(make_instance((1.0,) * 30, (1.0,) * 100), ["asteroid"])
    assert asteroid.plan is None
    assert asteroid.left_out
    assert "100 devices and 30 layers" in asteroid.problem
    assert asteroid.to_json() == {"name": "asteroid", "problem": asteroid.problem, "left_out": True}


def test_planners_whose_replicas_cannot_split_what_is_left_say_so_and_the_others_plan() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), least_batch=2, mini_batch=31)
    found = {other.name: other for other in of_planners(instance, comparison_planners("edgeswarm"), micro_batch=4)}
    assert "can't split" in found["data-parallel"].problem
    assert not found["data-parallel"].left_out
    assert found["single"].plan is not None
    assert found["pipeline"].plan is not None


def test_a_change_for_which_the_planner_was_not_made_has_no_plan() -> None:
    (more,) = of_changes(make_instance(slower=(1.0,) * 4, mini_batch=4), ["+a"], planner="exhaustive")
    assert more.plan is None
    assert "4 devices" in more.problem
