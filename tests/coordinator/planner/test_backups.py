"""Where the backups of stages go."""

from __future__ import annotations

from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.planner.backups import with_backups
from tests.coordinator.planner.instances import make_instance


def plan_of(*groups: dict[str, int]) -> Plan:
    stages = tuple(Stage(index, index + 1, shares, 1) for index, shares in enumerate(groups))
    return Plan(planner="by hand", micro_batch=4, micro_batches=2, stages=stages)


def test_a_device_of_the_next_stage_with_most_memory_left_holds_it() -> None:
    instance = make_instance(slower=(1.0, 1.0, 1.0), memory_bytes=(20_000, 20_000, 90_000))
    assert with_backups(instance, plan_of({"a": 4}, {"b": 2, "c": 2})).backup == {0: "c"}
    assert with_backups(instance, plan_of({"b": 3, "c": 1}, {"a": 4})).backup == {1: "c"}


def test_equal_devices_in_their_order_and_the_first_stage_for_the_last() -> None:
    instance = make_instance(slower=(1.0, 1.0))
    assert with_backups(instance, plan_of({"b": 4}, {"a": 4})).backup == {0: "a", 1: "b"}


def test_one_stage_has_nowhere_to() -> None:
    instance = make_instance(slower=(1.0, 1.0))
    whole = Plan(planner="x", micro_batch=4, micro_batches=2, stages=(Stage(0, 2, {"a": 4}, 1),))
    assert with_backups(instance, whole).backup == {}
