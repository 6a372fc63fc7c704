"""Planners that grow fast with devices: all are asked up to about 16 devices, and beyond as far as their work goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.profile import Network, PlanningInstance
from edgeswarm_coordinator.planner.planners import comparison_planners, is_too_much_work
from edgeswarm_coordinator.planner.planning_work import (
    asteroid_work,
    dapple_work,
    pipedream_work,
    pipeline_work,
    runs_of_groups,
)

from .instances import make_instance

COMPARED = comparison_planners("edgeswarm")
WORK = (asteroid_work, dapple_work, pipedream_work, pipeline_work)


def in_rooms(sizes: tuple[int, ...], *, layers: int) -> PlanningInstance:
    """Rooms of so many devices, all of unlike memory; links inside are ten times as fast as those between."""
    room_of = [room for room, size in enumerate(sizes) for _ in range(size)]
    rows = tuple(tuple(1e8 if a == b else 1e7 for b in room_of) for a in room_of)
    plain = make_instance((0.01,) * layers, (1.0,) * len(room_of), mini_batch=2048)
    return replace(plain, network=Network(0.001, rows))


@pytest.mark.parametrize("sizes", [(16,), (8, 8), (4, 4, 4, 4), (2,) * 8, (3, 3, 3, 2, 2, 2, 1), (10, 6)])
def test_of_16_devices_and_213_layers_every_planner_is_asked(sizes: tuple[int, ...]) -> None:
    instance = in_rooms(sizes, layers=213)
    assert [name for name in COMPARED if is_too_much_work(instance, name)] == []


def test_so_is_every_planner_of_6_devices_and_417_layers() -> None:
    instance = in_rooms((3, 3), layers=417)
    assert [name for name in COMPARED if is_too_much_work(instance, name)] == []


def test_of_100_devices_only_those_that_are_quick_are_asked() -> None:
    asked = {name for name in COMPARED if not is_too_much_work(in_rooms((10,) * 10, layers=213), name)}
    assert asked == {"data-parallel", "single", "gpipe"}


def test_more_devices_or_layers_are_more_work() -> None:
    small, more_layers = in_rooms((4,), layers=10), in_rooms((4,), layers=20)
    more_devices, more_rooms = in_rooms((8,), layers=10), in_rooms((4, 4), layers=10)
    for work in WORK:
        assert work(small) < work(more_layers)
        assert work(small) < work(more_devices)
        assert work(small) < work(more_rooms)
    assert dapple_work(more_devices) < dapple_work(more_rooms)
    assert pipedream_work(more_devices) < pipedream_work(more_rooms)


def test_runs_of_layers_times_groups_of_devices() -> None:
    assert runs_of_groups(in_rooms((3,), layers=5)) == 25 * 9
