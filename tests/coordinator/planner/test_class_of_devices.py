"""Which devices a name means, and the list of classes that a person reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.class_of_devices import (
    class_label,
    classes_in_words,
    devices_called,
    devices_named,
)

from .instances import make_instance


def named(*devices: tuple[str, str, str]) -> PlanningInstance:
    """Devices by name, profile and board."""
    plain = make_instance(slower=(1.0,) * len(devices))
    profile = plain.profile_of("a")
    return replace(
        plain,
        profiles={kind: profile for _, kind, _ in devices},
        devices=tuple(
            replace(device, name=name, profile=kind, board=board)
            for device, (name, kind, board) in zip(plain.devices, devices, strict=True)
        ),
    )


HOME = named(("nano-1", "5e0f", "Jetson"), ("nano-2", "5e0f", "Jetson"), ("Jet", "77aa", "LENOVO"), ("old", "nano", ""))


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("nano-2", [1]),
        ("nano", [3]),  # a whole profile before the beginning of a device's name
        ("nan", [0, 1, 3]),
        ("Jet", [2]),  # a device before the beginning of a board
        ("Jets", [0, 1]),
        ("77aa", [2]),
        ("77", []),
    ],
)
def test_whole_names_come_before_beginnings(name: str, places: list[int]) -> None:
    assert devices_called(HOME, name) == places


BOXES = named(
    *((name, "5e0f", "Jetson") for name in ("nano-1-0a4f22", "nano-10-77c1e0", "nano-1-0a4f22+2", "lap-b", "laptop-c")),
)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("nano-1-0a4f22", [0]),
        ("nano-1", [0]),
        ("nano-10", [1]),
        ("nano-1+2", [2]),
        ("nano-1-0a4f22+2", [2]),
        ("nano-1-", [0]),
        ("nano", [0, 1]),  # what a change has added is meant by its whole name alone
        ("lap", [3, 4]),
        ("lap-", [3]),
        ("nano-2", []),
    ],
)
def test_a_device_is_named_with_or_without_its_digits(name: str, places: list[int]) -> None:
    assert devices_named(BOXES, name) == places
    assert devices_called(BOXES, name)[:1] == places[:1]


def test_a_number_has_no_beginning() -> None:
    assert devices_named(named(("nano-10-77c1e0", "5e0f", "")), "nano-1") == []
    assert devices_called(named(("nano-10-77c1e0", "5e0f", "Jetson 10")), "Jetson 1") == []


def test_a_class_is_called_by_its_board_where_that_is_known() -> None:
    assert [class_label(device) for device in HOME.devices] == ["Jetson", "Jetson", "LENOVO", "nano"]
    assert classes_in_words(HOME) == "Jetson (nano-1, nano-2); LENOVO (Jet); nano (old)"


def test_many_devices_of_a_class_are_counted() -> None:
    many = named(*((f"pi-{place}", "pi", "") for place in range(6)))
    assert classes_in_words(many) == "pi (pi-0, pi-1, pi-2 and 3 more)"
