"""Instances that aren't: without a device, with a faster link, with more memory, with one more device.

-laptop               without it
nano-1.mbps=1000      its network card at 1000 Mbit/s, both ways; a pair is as fast as the slower of its two cards
nano-1.memory=8GiB    what training may use there
+nano-1               one more device like it (or like those of a class of devices)
"""

from __future__ import annotations

import re
from dataclasses import replace

from edgeswarm.config import parse_bytes
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import DataSource, Network, PlanningInstance

FORMS = "-DEVICE, +DEVICE, DEVICE.mbps=NUMBER, DEVICE.memory=SIZE"


def what_if(instance: PlanningInstance, change: str) -> PlanningInstance:
    """The instance after one change. Raises EdgeswarmError(CONFIG) for one that can't be understood or made."""
    match = re.fullmatch(r"(?P<sign>[-+])(?P<device>.+)|(?P<changed>.+)\.(?P<what>mbps|memory)=(?P<value>.+)", change)
    if match is None:
        raise _wrong(f"--what-if {change!r} is none of {FORMS}", "Write it as one of these.")
    if match["sign"] == "-":
        return _without(instance, match["device"])
    if match["sign"] == "+":
        return _with_one_more(instance, match["device"])
    place = _place(instance, match["changed"])
    if match["what"] == "memory":
        return _with_memory(instance, place, match["value"])
    try:
        megabits = float(match["value"])
    except ValueError:
        megabits = -1.0
    if not megabits > 0:
        raise _wrong(f"--what-if {change!r}: {match['value']!r} is no number of Mbit/s", "Give one above 0.")
    return _with_card(instance, place, megabits * 1e6 / 8)


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


def _with_card(instance: PlanningInstance, place: int, bytes_per_second: float) -> PlanningInstance:
    """Links of a device as fast as its new card and those of the others let them be."""
    rows = [list(row) for row in instance.network.bandwidth]
    count = len(rows)
    for other in range(count):
        if other != place:
            # The card that we don't change is at least as fast as its fastest link to a third device.
            fastest_out = max(
                (rows[other][third] for third in range(count) if third not in (other, place)), default=0.0
            )
            fastest_in = max((rows[third][other] for third in range(count) if third not in (other, place)), default=0.0)
            rows[place][other] = min(bytes_per_second, fastest_in or bytes_per_second)
            rows[other][place] = min(bytes_per_second, fastest_out or bytes_per_second)
    source = instance.data_source
    if source is not None:
        to_devices = list(source.bandwidth)
        to_devices[place] = min(bytes_per_second, source.egress)
        source = replace(source, bandwidth=tuple(to_devices))
    network = Network(instance.network.latency_seconds, tuple(map(tuple, rows)))
    return replace(instance, network=network, data_source=source)


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
