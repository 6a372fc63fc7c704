"""Instances that aren't: without a device, with a faster link, with more memory, with one more device.

-laptop               without it
nano-1.mbps=1000      its network card at 1000 Mbit/s, both ways; a pair is as fast as the slower of its two cards
nano-1.memory=8GiB    what training may use there
+nano-1               one more device like it (or like those of a class of devices)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from edgeswarm.config import parse_bytes
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import DataSource, Network, PlanningInstance

_FORM = re.compile(r"(?P<sign>[-+])(?P<device>.+)|(?P<changed>.+)\.(?P<what>mbps|memory)=(?P<value>.+)")
FORMS = "-DEVICE, +DEVICE, DEVICE.mbps=NUMBER, DEVICE.memory=SIZE"


def what_if(instance: PlanningInstance, changes: str) -> PlanningInstance:
    """The instance after a change, or after several with commas between them.

    Raises EdgeswarmError(CONFIG) for one that can't be understood or made.
    """
    cards: dict[str, float] = {}
    for match in _parsed(changes):
        if match["sign"] == "-":
            instance = _without(instance, match["device"])
        elif match["sign"] == "+":
            instance = _with_one_more(instance, match["device"])
        elif match["what"] == "memory":
            instance = _with_memory(instance, _place(instance, match["changed"]), match["value"])
        else:
            cards[instance.device_names[_place(instance, match["changed"])]] = _bytes_per_second(match["value"])
    return _with_cards(instance, {_place(instance, name): speed for name, speed in cards.items()})


def check_changes(changes: str) -> None:
    """Raises EdgeswarmError(CONFIG) for changes that can't be understood, whatever devices there are."""
    for match in _parsed(changes):
        if match["what"] == "mbps":
            _bytes_per_second(match["value"])


def _parsed(changes: str) -> list[re.Match[str]]:
    matches = []
    for change in changes.split(","):
        match = _FORM.fullmatch(change.strip())
        if match is None:
            raise _wrong(f"--what-if {change.strip()!r} is none of {FORMS}", "Write it as one of these.")
        matches.append(match)
    return matches


def _bytes_per_second(value: str) -> float:
    try:
        megabits = float(value)
    except ValueError:
        megabits = -1.0
    if not megabits > 0:
        raise _wrong(f"--what-if: {value!r} is no number of Mbit/s", "Give one above 0.")
    return megabits * 1e6 / 8


def _without(instance: PlanningInstance, device: str) -> PlanningInstance:
    gone = _place(instance, device)
    if len(instance.devices) == 1:
        raise _wrong(f"--what-if -{device}: it is the only device", "Ask what another device would bring: +DEVICE.")
    return instance.only([name for place, name in enumerate(instance.device_names) if place != gone])


def _with_memory(instance: PlanningInstance, place: int, value: str) -> PlanningInstance:
    try:
        memory = parse_bytes(value)
    except ValueError as error:
        raise _wrong(
            f"--what-if {instance.device_names[place]}.memory: {value!r} {error}", "Write it as 8GiB."
        ) from None
    devices = list(instance.devices)
    devices[place] = replace(devices[place], memory_bytes=memory)
    return replace(instance, devices=tuple(devices))


def _with_cards(instance: PlanningInstance, cards: Mapping[int, float]) -> PlanningInstance:
    """Links as fast as the slower of their two cards. cards: bytes per second of the new ones, by device.

    A card that stays is as fast as its fastest link to a third device; where there is none it doesn't hold the new one up.
    """
    if not cards:
        return instance
    before = instance.network.bandwidth
    places = range(len(before))

    def out_of(place: int, *, without: int) -> float:
        known = (before[place][third] for third in places if third not in (place, without))
        return cards[place] if place in cards else max(known, default=math.inf)

    def into(place: int, *, without: int) -> float:
        known = (before[third][place] for third in places if third not in (place, without))
        return cards[place] if place in cards else max(known, default=math.inf)

    rows = tuple(
        tuple(
            min(out_of(a, without=b), into(b, without=a)) if a != b and (a in cards or b in cards) else before[a][b]
            for b in places
        )
        for a in places
    )
    source = instance.data_source
    if source is not None:
        to_devices = (min(cards.get(place, speed), source.egress) for place, speed in enumerate(source.bandwidth))
        source = replace(source, bandwidth=tuple(to_devices))
    return replace(instance, network=Network(instance.network.latency_seconds, rows), data_source=source)


def _with_one_more(instance: PlanningInstance, like: str) -> PlanningInstance:
    """Another device like one that is there, or like the first of a class; linked as that one is."""
    model = next((place for place, device in enumerate(instance.devices) if device.profile == like), None)
    if model is None or like in instance.index_of:
        model = _place(instance, like)
    rows = instance.network.bandwidth
    # From one to the other of the two alike: as fast as the fastest link of the one that is there.
    between = max((rows[model][other] for other in range(len(rows)) if other != model), default=0.0)
    if not between:
        raise _wrong(
            f"--what-if +{like}: there is one device, so nothing is known of a link between two",
            "Plan with two devices at least.",
        )
    device = replace(instance.devices[model], name=_new_name(instance, instance.devices[model].name))
    more_rows = [(*row, between if place == model else row[model]) for place, row in enumerate(rows)]
    last_row = tuple(between if place == model else bandwidth for place, bandwidth in enumerate(rows[model]))
    source: DataSource | None = instance.data_source
    if source is not None:
        source = replace(source, bandwidth=(*source.bandwidth, source.bandwidth[model]))
    return replace(
        instance,
        devices=(*instance.devices, device),
        network=Network(instance.network.latency_seconds, (*more_rows, (*last_row, 1.0))),
        data_source=source,
    )


def _new_name(instance: PlanningInstance, name: str) -> str:
    number = 2
    while f"{name}+{number}" in instance.index_of:
        number += 1
    return f"{name}+{number}"


def _place(instance: PlanningInstance, device: str) -> int:
    """A device by its name, or by the only one that begins with it."""
    if device in instance.index_of:
        return instance.index_of[device]
    begin = [place for place, name in enumerate(instance.device_names) if name.startswith(device)]
    if len(begin) == 1:
        return begin[0]
    problem = "more than one device begins with it" if begin else "there is no such device"
    raise _wrong(f"--what-if: {device!r}: {problem}", f"The devices are {', '.join(instance.device_names)}.")


def _wrong(problem: str, remedy: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.CONFIG, f"{problem}.", remedy)
