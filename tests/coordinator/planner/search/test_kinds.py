"""Which devices are interchangeable, and the order of devices that doesn't depend on how they are listed."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.profile import DataSource, Network, PlanningInstance
from edgeswarm_coordinator.planner.search.kinds import canonical_order, interchangeable_kinds

from ..instances import PLENTY, instances, make_instance


def alike(count: int) -> PlanningInstance:
    """Devices of one class and memory, links all alike."""
    instance = make_instance(slower=(1.0,) * count, memory_bytes=[PLENTY] * count)
    devices = tuple(replace(device, profile="class-a") for device in instance.devices)
    return replace(instance, devices=devices)


def with_links(instance: PlanningInstance, rows: list[list[float]]) -> PlanningInstance:
    return replace(instance, network=Network(0.0, tuple(map(tuple, rows))))


def test_devices_of_one_class_memory_and_links_are_of_one_kind() -> None:
    assert interchangeable_kinds(alike(3)) == [0, 0, 0]


def test_memory_and_class_tell_devices_apart() -> None:
    instance = make_instance(slower=(1.0, 2.0, 1.0), memory_bytes=[PLENTY, PLENTY, PLENTY - 1])
    assert len(set(interchangeable_kinds(instance))) == 3


def test_the_data_sources_machine_tells_its_device_apart() -> None:
    source = DataSource((9.0,) * 3, egress=9.0, on_its_machine=(False, True, False))
    kinds = interchangeable_kinds(replace(alike(3), data_source=source))
    assert kinds[0] == kinds[2] != kinds[1]


def test_a_slow_link_tells_its_device_apart() -> None:
    rows = [[9.0, 9.0, 1.0], [9.0, 9.0, 1.0], [1.0, 1.0, 9.0]]
    kinds = interchangeable_kinds(with_links(alike(3), rows))
    assert kinds[0] == kinds[1] != kinds[2]


def test_two_rooms_that_look_alike_are_told_apart() -> None:
    rows = [[9.0 if a // 2 == b // 2 else 1.0 for b in range(4)] for a in range(4)]
    kinds = interchangeable_kinds(with_links(alike(4), rows))
    # Were all of one kind, a pair of one room could not be told from a pair across.
    assert kinds[2] == kinds[3]
    assert set(kinds[:2]).isdisjoint(kinds[2:])


def test_rooms_of_two_classes_are_in_one_order_however_devices_are_listed() -> None:
    """Of which either class could be told apart first."""
    plain = make_instance(slower=(1.0, 2.0), memory_bytes=[PLENTY, PLENTY])
    devices = [
        replace(plain.devices[place // 2], name=name) for place, name in enumerate(("nx-1", "nx-2", "nano-1", "nano-2"))
    ]
    links = Network(0.0, tuple(tuple(9.0 if a % 2 == b % 2 else 1.0 for b in range(4)) for a in range(4)))
    instance = replace(plain, devices=tuple(devices), network=links)
    orders = set()
    for names in itertools.permutations(instance.device_names):
        listed = instance.only(names)
        orders.add(tuple(listed.device_names[place] for place in canonical_order(listed)))
    assert len(orders) == 1


@given(instance=instances(uniform_links=False), chance=st.randoms())
def test_the_order_is_the_same_however_devices_are_listed(instance: PlanningInstance, chance: object) -> None:
    names = list(instance.device_names)
    chance.shuffle(names)  # type: ignore[attr-defined]
    listed = instance.only(names)

    def in_order(one: PlanningInstance) -> list[str]:
        return [one.device_names[place] for place in canonical_order(one)]

    assert in_order(listed) == in_order(instance)
