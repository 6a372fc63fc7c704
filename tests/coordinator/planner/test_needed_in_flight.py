"""What a stage needn't hold isn't reserved, and no round is longer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.planner.needed_in_flight import (
    _LONGER,
    _LONGER_WHERE_SLOWER,
    _slower_in_part,
    with_needed_in_flight,
)
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.simulator.simulate import round_seconds

from .instances import make_instance


def pipeline(*in_flight: int) -> Plan:
    stages = (
        Stage(0, 2, {"a": 2}, in_flight[0]),
        Stage(2, 3, {"b": 2}, in_flight[1]),
        Stage(3, 4, {"c": 2}, in_flight[2]),
    )
    return Plan(planner="by hand", micro_batch=2, micro_batches=8, stages=stages)


@pytest.mark.thorough
@settings(deadline=None)
@given(
    in_flight=st.tuples(*[st.integers(1, 9)] * 3),
    slower=st.tuples(*[st.sampled_from((1.0, 1.05, 4.0))] * 3),
    bandwidth=st.sampled_from((20.0, 200.0, 1e9)),
)
def test_no_round_is_longer_with_what_is_needed(
    in_flight: tuple[int, int, int], slower: tuple[float, float, float], bandwidth: float
) -> None:
    instance = make_instance(slower=slower, bandwidth=bandwidth)
    plan = with_prediction(instance, pipeline(*in_flight))
    fewer = with_needed_in_flight(instance, plan)
    assert all(1 <= stage.in_flight <= had for stage, had in zip(fewer.stages, in_flight, strict=True))
    assert round_seconds(instance, fewer) <= _LONGER * round_seconds(instance, plan)
    for slower_in_part in _slower_in_part(instance, plan):
        assert round_seconds(slower_in_part, fewer) <= _LONGER_WHERE_SLOWER * round_seconds(slower_in_part, plan)
    assert fewer.predicted is not None
    assert plan.predicted is not None
    assert all(fewer.predicted.memory_bytes[name] <= held for name, held in plan.predicted.memory_bytes.items())


def test_a_quick_stage_behind_a_slow_one_gives_up_what_it_never_reaches() -> None:
    instance = make_instance(slower=(9.0, 1.0, 1.0), bandwidth=1e9)
    fewer = with_needed_in_flight(instance, with_prediction(instance, pipeline(5, 3, 1)))
    assert [stage.in_flight for stage in fewer.stages] == [2, 1, 1]


def test_equal_stages_keep_most_of_theirs() -> None:
    """Each has two layers; any of them may be the slow one. The usual fifth in the first is for links, which take none."""
    instance = make_instance((1.0,) * 6, slower=(1.0, 1.0, 1.0), bandwidth=1e9)
    stages = tuple(
        Stage(2 * p, 2 * p + 2, {name: 2}, k) for p, (name, k) in enumerate(zip("abc", (5, 3, 1), strict=True))
    )
    plan = with_prediction(instance, Plan(planner="by hand", micro_batch=2, micro_batches=8, stages=stages))
    fewer = with_needed_in_flight(instance, plan)
    assert [stage.in_flight for stage in fewer.stages] == [4, 3, 1]


def test_a_plan_of_too_many_micro_batches_to_try_keeps_what_it_has() -> None:
    instance = make_instance(slower=(9.0, 1.0, 1.0), bandwidth=1e9)
    plan = with_prediction(instance, pipeline(5, 3, 1))
    two_rounds = 2 * 3 * 8  # of three devices
    assert with_needed_in_flight(instance, plan, most_work=two_rounds) == plan
    assert with_needed_in_flight(instance, plan) != plan


@pytest.mark.usefixtures("full_search")
@pytest.mark.parametrize("planner", ["pipeline", "edgeswarm"])
def test_planners_of_this_runtime_have_it(planner: str) -> None:
    instance = make_instance(slower=(9.0, 1.0, 1.0, 1.0), bandwidth=1e9, param_bytes=1)
    plan = make_plan(instance, planner)
    assert with_needed_in_flight(instance, plan) == plan


def test_a_plan_of_another_instance_is_refused() -> None:
    instance = make_instance(slower=(1.0, 1.0))
    with pytest.raises(EdgeswarmError):
        with_needed_in_flight(instance, pipeline(5, 3, 1))
