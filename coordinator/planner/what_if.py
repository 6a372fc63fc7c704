"""Instances that aren't: without a device, with a faster link, with more memory, with one more device.

-laptop               without it
nano-1.mbps=1000      its network card at 1000 Mbit/s, both ways; a pair is as fast as the slower of its two cards, but where
                      the path between them is slower still
nano-1.memory=8GiB    what training may use there
+nano-1               one more device like it (or like those of a class of devices, see class_of_devices.py)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeswarm.config import parse_bytes
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import UNKNOWN_BANDWIDTH, DataSource, Network, PlanningInstance

from .class_of_devices import classes_in_words, devices_called, devices_named
from .units import readable_bytes, readable_seconds

_FORM = re.compile(r"(?P<sign>[-+])(?P<device>.+)|(?P<changed>.+)\.(?P<what>mbps|memory)=(?P<value>.+)")
# Of what its slower card carries: a pair that is slower than that is held up by something between the two.
_AS_FAST_AS_A_CARD = 0.8
FORMS = "-DEVICE, +DEVICE, +CLASS, DEVICE.mbps=NUMBER, DEVICE.memory=SIZE"


@dataclass(frozen=True)
class ChangedInstance:
    """assumptions: sentences about what the change doesn't say by itself and is nowhere measured."""

    instance: PlanningInstance
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Change:
    """what: "-", "+", "mbps" or "memory". bytes_per_second: of a card. memory_bytes: for training."""

    what: str
    device: str
    bytes_per_second: float = 0.0
    memory_bytes: int = 0


def what_if(instance: PlanningInstance, changes: str) -> ChangedInstance:
    """The instance after a change, or after several with commas between them.

    Raises EdgeswarmError(CONFIG) for one that can't be understood or made.
    """
    cards: dict[str, float] = {}
    assumptions: list[str] = []
    for change in _parsed(changes):
        if change.what == "-":
            instance = _without(instance, change.device)
        elif change.what == "+":
            made = _with_one_more(instance, change.device)
            instance = made.instance
            assumptions.extend(made.assumptions)
        elif change.what == "memory":
            instance = _with_memory(instance, _place(instance, change.device), change.memory_bytes)
        else:
            cards[instance.device_names[_place(instance, change.device)]] = change.bytes_per_second
    instance = _with_cards(instance, {_place(instance, name): speed for name, speed in cards.items()})
    return ChangedInstance(instance, tuple(assumptions))


def check_changes(changes: str) -> None:
    """Raises EdgeswarmError(CONFIG) for changes that can't be understood, whatever devices there are."""
    _parsed(changes)


def _parsed(changes: str) -> list[_Change]:
    return [_parsed_one(change.strip()) for change in changes.split(",")]


def _parsed_one(change: str) -> _Change:
    match = _FORM.fullmatch(change)
    if match is None:
        raise _wrong(f"--what-if {change!r} is none of {FORMS}", "Write it as one of these.")
    if match["sign"]:
        return _Change(match["sign"], match["device"].strip())
    what, device = match["what"], match["changed"].strip()
    if what == "mbps":
        return _Change(what, device, bytes_per_second=_bytes_per_second(match["value"]))
    try:
        return _Change(what, device, memory_bytes=parse_bytes(match["value"]))
    except ValueError as error:
        raise _wrong(f"--what-if {device}.memory: {match['value']!r} {error}", "Write it as 8GiB.") from None


def _bytes_per_second(value: str) -> float:
    try:
        megabits = float(value)
    except ValueError:
        megabits = -1.0
    if not 0 < megabits < math.inf:
        raise _wrong(f"--what-if: {value!r} is no number of Mbit/s", "Give one above 0.")
    return megabits * 1e6 / 8


def _without(instance: PlanningInstance, device: str) -> PlanningInstance:
    gone = _place(instance, device)
    if len(instance.devices) == 1:
        raise _wrong(
            f"--what-if -{device}: it is the only device",
            f"Ask what one more like it would bring: --what-if +{instance.device_names[gone]}.",
        )
    return instance.only([name for place, name in enumerate(instance.device_names) if place != gone])


def _with_memory(instance: PlanningInstance, place: int, memory_bytes: int) -> PlanningInstance:
    devices = list(instance.devices)
    devices[place] = replace(devices[place], memory_bytes=memory_bytes)
    return replace(instance, devices=tuple(devices))


def _with_cards(instance: PlanningInstance, cards: Mapping[int, float]) -> PlanningInstance:
    """Links as their two cards allow, and the path between them. cards: bytes per second of the new ones, by device.

    A card that stays is as fast as its fastest link; where that is its only one it doesn't hold the new one up. The data
    source's own card stays, too, unless it is that of a device on its machine.
    """
    if not cards:
        return instance
    before = instance.network.bandwidth
    places = range(len(before))
    fastest_out = [max((before[a][b] for b in places if b != a), default=0.0) for a in places]
    fastest_in = [max((before[a][b] for a in places if a != b), default=0.0) for b in places]
    alone = len(before) <= 2  # which of the two cards their link is as fast as, nothing says

    def changed(a: int, b: int) -> float:
        staying = (math.inf, math.inf) if alone else (fastest_out[a], fastest_in[b])
        return _rate_with_cards(
            before[a][b],
            cards_before=min(fastest_out[a], fastest_in[b]),
            cards_now=min(cards.get(a, staying[0]), cards.get(b, staying[1])),
        )

    rows = tuple(
        tuple(changed(a, b) if a != b and (a in cards or b in cards) else before[a][b] for b in places) for a in places
    )
    source = instance.data_source
    if source is not None:
        source = _served_with_cards(source, cards, fastest_in, alone=alone)
    return replace(instance, network=replace(instance.network, bandwidth=rows), data_source=source)


def _served_with_cards(
    source: DataSource, cards: Mapping[int, float], fastest_in: Sequence[float], *, alone: bool
) -> DataSource:
    """What stays on the source's machine goes over no card. fastest_in: of each device's fastest link before. alone: as the
    link of two devices doesn't tell which of their cards holds it up, neither does it where one of them is the source's.
    """
    there = source.on_its_machine
    elsewhere = [place for place, is_there in enumerate(there) if not is_there]
    own = max([source.egress, *(source.bandwidth[place] for place in elsewhere)])
    new = min((rate for place, rate in cards.items() if there[place]), default=None)
    is_link = alone and any(there)

    def changed(place: int, speed: float) -> float:
        if there[place] or (place not in cards and new is None):
            return speed
        before = max(speed, fastest_in[place])
        source_now = new if new is not None else math.inf if is_link else own
        device_now = cards.get(place, math.inf if is_link else before)
        return _rate_with_cards(speed, cards_before=min(own, before), cards_now=min(source_now, device_now))

    bandwidth = tuple(changed(place, speed) for place, speed in enumerate(source.bandwidth))
    if new is None:
        new = max([source.egress, *(bandwidth[place] for place in elsewhere if is_link)])
    return replace(source, bandwidth=bandwidth, egress=new)


def _rate_with_cards(rate: float, *, cards_before: float, cards_now: float) -> float:
    """Bytes per second of a pair whose slower card is as fast as `cards_now` instead of `cards_before`.

    It gets faster only where a card held it up. Where it was clearly slower than both cards, by more than a fifth, it is the path
    between them: a bridge between two rooms, a wireless hop. Rates measured over like cards differ by some percent, cards of
    the next slower kind by a factor of 2.5 and more.
    """
    if cards_now > cards_before and rate >= _AS_FAST_AS_A_CARD * cards_before:
        return cards_now
    return min(rate, cards_now)


def _with_one_more(instance: PlanningInstance, like: str) -> ChangedInstance:
    """Another device like one that is there, or like the first of a class; linked as that one is."""
    place_of_model = _model_of_new_one(instance, like)
    model = instance.devices[place_of_model]
    assumptions = []
    if like != model.name:
        memory = readable_bytes(model.memory_bytes)
        assumptions.append(f"One more like {model.name}: its links, and {memory} of memory for training.")
    rows = instance.network.bandwidth
    # From one to the other of the two alike: as fast as the fastest link of the one that is there.
    between = max((rows[place_of_model][other] for other in range(len(rows)) if other != place_of_model), default=0.0)
    source: DataSource | None = instance.data_source
    served = UNKNOWN_BANDWIDTH
    if source is not None:
        served = source.bandwidth[place_of_model]
        if source.on_its_machine[place_of_model]:
            # A box of its own gets its samples over the source's card, of which nothing is known where all are on that machine.
            served = UNKNOWN_BANDWIDTH if all(source.on_its_machine) else source.egress
    if not between:
        between = served
        latency = readable_seconds(instance.network.latency_seconds)
        assumptions.append(
            f"No link between two devices was measured: {between * 8 / 1e6:g} Mbit/s each way, where no .mbps says "
            f"otherwise, and {latency} of latency are assumed."
        )
    device = replace(model, name=_new_name(instance, model.name))
    more_rows = [(*row, between if place == place_of_model else row[place_of_model]) for place, row in enumerate(rows)]
    last_row = tuple(
        between if place == place_of_model else bandwidth for place, bandwidth in enumerate(rows[place_of_model])
    )
    if source is not None:
        source = replace(source, bandwidth=(*source.bandwidth, served), on_its_machine=(*source.on_its_machine, False))
    larger = replace(
        instance,
        devices=(*instance.devices, device),
        network=_with_latencies_as(instance.network, place_of_model, (*more_rows, (*last_row, 1.0))),
        data_source=source,
    )
    return ChangedInstance(larger, tuple(assumptions))


def _with_latencies_as(network: Network, model: int, bandwidth: tuple[tuple[float, ...], ...]) -> Network:
    """Of one device more, whose latencies are those of the one that it is like; between the two, as that one's least."""
    if not network.latencies:
        return replace(network, bandwidth=bandwidth)
    own = network.latencies[model]
    others = [place for place in range(len(own)) if place != model]
    between = min((own[place] for place in others), default=network.latency_seconds)
    rows = [(*row, between if place == model else row[model]) for place, row in enumerate(network.latencies)]
    return Network.of_pairs(
        [*rows, (*(between if place == model else own[place] for place in range(len(own))), 0.0)], bandwidth
    )


def _model_of_new_one(instance: PlanningInstance, like: str) -> int:
    """Place of the device that a new one is like."""
    places = devices_called(instance, like)
    if len({instance.devices[place].profile for place in places}) == 1:
        return places[0]
    problem = "that may be devices of more than one class" if places else "there is no such device or class"
    raise _wrong(
        f"--what-if: {like!r}: {problem}",
        f"Name a device or a class of them; the classes are {classes_in_words(instance)}.",
    )


def _new_name(instance: PlanningInstance, name: str) -> str:
    number = 2
    while f"{name}+{number}" in instance.index_of:
        number += 1
    return f"{name}+{number}"


def _place(instance: PlanningInstance, device: str) -> int:
    meant = devices_named(instance, device)
    if len(meant) == 1:
        return meant[0]
    problem = "that may be more than one device" if meant else "there is no such device"
    raise _wrong(f"--what-if: {device!r}: {problem}", f"The devices are {', '.join(instance.device_names)}.")


def _wrong(problem: str, remedy: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.CONFIG, f"{problem}.", remedy)
