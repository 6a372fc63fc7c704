"""Units of devices, by network first and then by compute."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeswarm.profile import Network, PlanningInstance
from edgeswarm_coordinator.planner.search.grouping import MOST_TRANSITIONS, groups_by_room, make_units, transitions
from edgeswarm_coordinator.planner.search.problem import SearchProblem

from ..instances import PLENTY, make_instance


def many(count: int, *, rooms: int = 1, noise: float = 0.0, slower: float = 3.0) -> PlanningInstance:
    """Devices of two classes by turns, one slower than the other, in rooms with slow links between; bandwidths off by up to
    `noise`.
    """
    chance = random.Random(1)
    instance = make_instance(slower=(1.0, slower), memory_bytes=[PLENTY, PLENTY])
    devices = tuple(replace(instance.devices[place % 2], name=f"device{place:03}") for place in range(count))
    rows = tuple(
        tuple(
            (1e6 if a * rooms // count == b * rooms // count else 1e4) * (1 + noise * chance.uniform(-1, 1))
            for b in range(count)
        )
        for a in range(count)
    )
    return replace(instance, devices=devices, network=Network(0.0, rows))


def test_few_devices_stay_single_and_exact() -> None:
    units = make_units(SearchProblem(many(5)))
    assert sorted(len(kind.units) for kind in units) == [2, 3]
    assert all(kind.unit_size == 1 for kind in units)


def test_nearly_alike_devices_become_one_kind() -> None:
    units = make_units(SearchProblem(many(8, noise=0.03)))
    assert sorted(len(kind.devices) for kind in units) == [4, 4]


def test_rooms_come_before_classes() -> None:
    problem = SearchProblem(many(40, rooms=2, noise=0.03))
    units = make_units(problem)
    for kind in units:
        names = [problem.instance.device_names[device] for device in kind.devices]
        assert len({name < "device020" for name in names}) == 1
        assert len({problem.class_of[device] for device in kind.devices}) == 1


def test_a_hundred_devices_are_few_units_and_none_is_lost() -> None:
    units = make_units(SearchProblem(many(100, rooms=2)))
    assert transitions([len(kind.units) for kind in units]) <= MOST_TRANSITIONS
    assert sorted(device for kind in units for device in kind.devices) == list(range(100))


@pytest.mark.parametrize(("count", "rooms"), [(16, 8), (100, 10), (60, 30)])
def test_many_rooms_are_few_units_too(count: int, rooms: int) -> None:
    problem = SearchProblem(many(count, rooms=rooms))
    units = make_units(problem)
    assert transitions([len(kind.units) for kind in units]) <= MOST_TRANSITIONS
    assert sorted(device for kind in units for device in kind.devices) == list(range(count))


def test_rooms_are_merged_before_classes_that_are_far_apart() -> None:
    problem = SearchProblem(many(8, rooms=4, slower=20.0))
    units = make_units(problem)
    assert transitions([len(kind.units) for kind in units]) <= MOST_TRANSITIONS
    for kind in units:
        assert len({problem.class_of[device] for device in kind.devices}) == 1


def test_groups_by_room_fill_one_room_after_another_with_the_fastest_first() -> None:
    problem = SearchProblem(many(30, rooms=3, noise=0.03))
    groups = groups_by_room(problem)
    assert sorted(map(len, groups)) == [5, 10, 10, 15, 20, 30]
    for group in groups:
        names = [problem.instance.device_names[device] for device in group]
        rooms = {int(name.removeprefix("device")) // 10 for name in names}
        assert len(group) in (5 * len(rooms), 10 * len(rooms))
        assert len({problem.class_of[device] for device in group}) == (1 if len(group) == 5 * len(rooms) else 2)
