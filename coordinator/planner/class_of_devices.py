"""Devices and classes of them as a person names them: the devices of one class have one profile.

A person calls a device by its name, with or without the six hex digits of its id. A class by any of its devices, by the board
that its devices are (as `edgeswarm devices` prints it), or by what its profile is called in a planning instance. For all of these
the beginning will do, but not of a number: nano-1 is no beginning of nano-10.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from edgeswarm.profile import DeviceDescription, PlanningInstance

MOST_NAMES = 3  # of one class that are listed, others are counted
_ID = re.compile(r"-[0-9a-f]{6}(?=\+|$)")


def class_label(device: DeviceDescription) -> str:
    """What the device's class is called before a person: its board; its profile where no board is known."""
    return device.board or device.profile


def devices_named(instance: PlanningInstance, name: str) -> list[int]:
    """Places of the devices of which one may be meant, none for a name of nothing.

    A whole name comes before the beginning of one. What a change has added (`laptop+2`) is meant by its whole name alone.
    """
    return _first_that_finds(
        instance,
        lambda device: device.name == name,
        lambda device: _ID.sub("", device.name) == name,
        lambda device: _begins(device.name, name) and "+" not in device.name.removeprefix(name),
    )


def devices_called(instance: PlanningInstance, name: str) -> list[int]:
    """Places of the devices that may be meant, none for a name of nothing; they may be of several classes.

    A device's own name comes before those of classes, a whole name before the beginning of one. The beginning of a profile
    counts where no board is known: else it is a sum of digits that nobody is shown.
    """
    return _first_that_finds(
        instance,
        lambda device: device.name == name,
        lambda device: _ID.sub("", device.name) == name,
        lambda device: name in (device.board, device.profile),
        lambda device: _begins(device.name, name) or _begins(class_label(device), name),
    )


def _first_that_finds(instance: PlanningInstance, *ways: Callable[[DeviceDescription], bool]) -> list[int]:
    found = ([place for place, device in enumerate(instance.devices) if is_meant(device)] for is_meant in ways)
    return next((places for places in found if places), [])


def _begins(whole: str, beginning: str) -> bool:
    rest = whole.removeprefix(beginning)
    return whole.startswith(beginning) and not (beginning[-1:].isdigit() and rest[:1].isdigit())


def classes_in_words(instance: PlanningInstance) -> str:
    """The classes and the devices of each, as "Jetson Nano (nano-1, nano-2); LENOVO 20XX (laptop)"."""
    names: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for device in instance.devices:
        names.setdefault(device.profile, []).append(device.name)
        labels.setdefault(device.profile, class_label(device))
    return "; ".join(f"{labels[profile]} ({_some(of_class)})" for profile, of_class in names.items())


def _some(names: list[str]) -> str:
    if len(names) <= MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
