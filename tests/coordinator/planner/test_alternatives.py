"""Other planners and other devices: a plan, or why there is none."""

from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm_coordinator.planner.alternatives import of_changes, of_planners

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
