"""PipeDream's optimizer as a planner of our instances: rooms as levels, stages onto devices, memory."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.profile import Network, PlanningInstance
from edgeswarm_coordinator.planner.planners import make_plan

from ..instances import make_instance


def two_rooms(instance: PlanningInstance, *, inside: float, between: float) -> PlanningInstance:
    count = len(instance.devices)
    rows = [[inside if 2 * a // count == 2 * b // count else between for b in range(count)] for a in range(count)]
    return replace(instance, network=Network(0.0, tuple(map(tuple, rows))))


def test_a_pipeline_between_rooms_and_groups_inside() -> None:
    """Weights travel cheaply inside a room only, activations anywhere."""
    instance = make_instance((1.0, 1.0), (1.0,) * 4, param_bytes=100, output_bytes=1)
    plan = make_plan(two_rooms(instance, inside=1e4, between=50.0), "pipedream", 4)
    assert [stage.devices for stage in plan.stages] == [("a", "b"), ("c", "d")]
    assert [list(stage.shares.values()) for stage in plan.stages] == [[2, 2], [2, 2]]


def test_a_pipeline_inside_that_both_rooms_have() -> None:
    """Activations travel cheaply inside a room only, the few weights anywhere."""
    instance = make_instance((1.0, 1.0), (1.0,) * 4, param_bytes=1, output_bytes=1000)
    plan = make_plan(two_rooms(instance, inside=1e4, between=50.0), "pipedream", 4)
    assert [stage.devices for stage in plan.stages] == [("a", "c"), ("b", "d")]
    assert [list(stage.shares.values()) for stage in plan.stages] == [[2, 2], [2, 2]]


def test_without_weights_every_device_has_the_whole_model() -> None:
    """A pipeline would be as fast, by stages that are equal, and no faster."""
    instance = make_instance((1.0, 1.0), (1.0,) * 4, param_bytes=0, output_bytes=1)
    plan = make_plan(two_rooms(instance, inside=1e4, between=50.0), "pipedream", 4)
    assert [stage.shares for stage in plan.stages] == [{"a": 1, "b": 1, "c": 1, "d": 1}]


def test_rooms_of_unequal_size_are_one_level() -> None:
    instance = make_instance((1.0, 1.0, 1.0), (1.0,) * 3, param_bytes=10**6, output_bytes=1)
    fast = {(0, 1), (1, 0)}
    rows = [[1e4 if (a, b) in fast else 10.0 for b in range(3)] for a in range(3)]
    plan = make_plan(replace(instance, network=Network(0.0, tuple(map(tuple, rows)))), "pipedream", 4)
    assert [stage.devices for stage in plan.stages] == [("a",), ("b",), ("c",)]


def test_memory_moves_a_cut() -> None:
    """By time the first layer stands alone; its device doesn't hold as little as that asks of the other one."""
    instance = make_instance((3.0, 1.0, 1.0, 1.0), (1.0, 1.0), param_bytes=100, saved_bytes=0, output_bytes=1)
    instance = replace(instance, training=replace(instance.training, optimizer_state_bytes_per_parameter_byte=0.0))
    free = make_plan(instance, "pipedream", 4)
    assert [(stage.first_layer, stage.end_layer) for stage in free.stages] == [(0, 1), (1, 4)]
    tight = replace(
        instance,
        devices=tuple(replace(device, memory_bytes=450) for device in instance.devices),
        network=Network.uniform(2, bytes_per_second=1.0, latency_seconds=0.0),
    )
    plan = make_plan(tight, "pipedream", 4)
    assert [(stage.first_layer, stage.end_layer) for stage in plan.stages] == [(0, 2), (2, 4)]
    assert plan.predicted is not None
    assert plan.predicted.memory_bytes == {"a": 400, "b": 400}
