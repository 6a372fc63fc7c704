"""Fewer in flight where frames would take more memory than there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner import room_for_frames
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.planner.room_for_frames import with_room_for_frames

from .instances import make_instance

FRAME, WEIGHTS, PLENTY = 100, 400, 10**9


def slow_second(memory_of_b: int) -> PlanningInstance:
    """Of two stages of a layer the second takes three times as long, so that the first one's frames lie there."""
    instance = make_instance(
        (1.0, 3.0), (1.0, 1.0), [PLENTY, memory_of_b], saved_bytes=0, output_bytes=FRAME, param_bytes=WEIGHTS // 4
    )
    return replace(instance, training=replace(instance.training, frames_held=1, mini_batch=8))


def two_stages(instance: PlanningInstance, in_flight: int) -> Plan:
    stages = (Stage(0, 1, {"a": 1}, in_flight), Stage(1, 2, {"b": 1}, 1))
    return with_prediction(instance, Plan(planner="by hand", micro_batch=1, micro_batches=8, stages=stages))


def needed(in_flight: int) -> int:
    predicted = two_stages(slow_second(PLENTY), in_flight).predicted
    assert predicted is not None
    return predicted.memory_bytes["b"]


def test_frames_that_lie_there_are_fewer_with_fewer_in_flight() -> None:
    assert needed(4) == needed(3) + FRAME == needed(2) + 2 * FRAME


@pytest.mark.parametrize("room_for", [2, 3, 4])
def test_as_many_are_in_flight_as_their_frames_have_room(room_for: int) -> None:
    instance = slow_second(needed(room_for))
    plan = with_room_for_frames(instance, two_stages(instance, 4))
    assert plan is not None
    assert [stage.in_flight for stage in plan.stages] == [room_for, 1]
    assert plan == two_stages(instance, room_for)


def test_a_device_that_is_short_of_memory_whatever_is_in_flight_has_no_plan() -> None:
    instance = slow_second(needed(1) - 1)
    assert with_room_for_frames(instance, two_stages(instance, 4)) is None


def test_many_in_flight_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = replace(slow_second(PLENTY), training=replace(slow_second(PLENTY).training, mini_batch=200))
    stages = (Stage(0, 1, {"a": 1}, 199), Stage(1, 2, {"b": 1}, 1))
    plan = with_prediction(instance, Plan(planner="by hand", micro_batch=1, micro_batches=200, stages=stages))
    short = replace(instance, devices=(instance.devices[0], replace(instance.devices[1], memory_bytes=needed(4))))
    tried: list[int] = []

    def counted(instance: PlanningInstance, plan: Plan) -> Plan:
        tried.append(plan.stages[0].in_flight)
        return with_prediction(instance, plan)

    monkeypatch.setattr(room_for_frames, "with_prediction", counted)
    fitting = with_room_for_frames(short, plan)
    assert fitting is not None
    assert fitting.stages[0].in_flight == 4
    assert len(tried) < 40
    # Where one in flight is too much, nothing else is tried.
    tried.clear()
    lacking = replace(instance, devices=(instance.devices[0], replace(instance.devices[1], memory_bytes=needed(1) - 1)))
    assert with_room_for_frames(lacking, plan) is None
    assert tried == [1]


@pytest.mark.parametrize("planner", ["edgeswarm", "pipeline", "asteroid"])
def test_a_plan_never_wants_more_than_there_is(planner: str) -> None:
    """In steps of a frame: all that is held is a multiple of it."""
    made = 0
    for memory in range(needed(1) - 3 * FRAME, needed(4) + FRAME, FRAME):
        instance = slow_second(memory)
        instance = replace(instance, devices=(replace(instance.devices[0], memory_bytes=memory), instance.devices[1]))
        try:
            plan = make_plan(instance, planner)
        except EdgeswarmError:
            continue
        assert plan.predicted is not None
        assert max(plan.predicted.memory_bytes.values()) <= memory
        made += 1
    assert made
