"""Which devices are interchangeable: a planner that exchanges two of them has planned nothing new.

Two devices are of one kind when their class, memory and links are alike. Links are compared by refinement: devices begin
with what they are by themselves, and two of a kind are told apart as long as their links to another kind differ:

    nx -fast- tx2 -slow- nano -fast- nano        kinds: nx | tx2 | nano nano
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from edgeswarm.profile import PlanningInstance

Link = tuple[float, float]  # bytes per second, and seconds one way


def interchangeable_kinds(instance: PlanningInstance) -> list[int]:
    """The kind of every device, numbered from 0 in an order that does not depend on the list's.

    All pairs of one kind, and all pairs of two given kinds, have the same link.
    """
    colours = _ranks([_own_signature(instance, place) for place in range(len(instance.devices))])
    network, places = instance.network, range(len(instance.devices))
    links = [[(float(network.matrix[a, b]), network.latency(a, b) if a != b else 0.0) for b in places] for a in places]
    while True:
        colours = _refine(colours, links)
        odd = _irregular(colours, links)
        if odd is None:
            return colours
        # Two rooms that look alike from outside: name one device, and whoever stands differently to it is told apart.
        first = min((instance.devices[place].name, place) for place in range(len(colours)) if colours[place] == odd)[1]
        colours = _ranks([(colour, place != first) for place, colour in enumerate(colours)])


def canonical_order(instance: PlanningInstance) -> list[int]:
    """Places of the devices by kind, then by name: the same list of devices however the instance lists them."""
    kinds = interchangeable_kinds(instance)
    return sorted(range(len(kinds)), key=lambda place: (kinds[place], instance.devices[place].name))


def _own_signature(instance: PlanningInstance, place: int) -> tuple[Hashable, ...]:
    device = instance.devices[place]
    source = instance.data_source
    served = 0.0 if source is None else source.bandwidth[place]
    is_at_source = source is not None and source.on_its_machine[place]
    free = float(device.memory_bytes - device.base_bytes)
    profile = instance.profiles[device.profile]
    batch = instance.training.mini_batch
    seconds = profile.forward(batch, 0, profile.layer_count) + profile.backward(batch, 0, profile.layer_count)
    return (seconds, -free, served, is_at_source, device.profile, device.base_bytes)


def _ranks(keys: Sequence[Hashable]) -> list[int]:
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return [order[key] for key in keys]


def _refine(colours: list[int], links: list[list[Link]]) -> list[int]:
    """Split kinds whose devices have other links to some kind, until none is split."""
    places = range(len(colours))
    while True:
        keys = [
            (colours[a], tuple(sorted((colours[b], links[a][b], links[b][a]) for b in places if b != a)))
            for a in places
        ]
        finer = _ranks(keys)
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _irregular(colours: list[int], links: list[list[Link]]) -> int | None:
    """Of the kinds some of whose pairs differ in their links the one of most devices, and of these the first, in whatever order
    the devices are; None where each two kinds have one link.
    """
    seen: dict[tuple[int, int], Link] = {}
    found: set[int] = set()
    for a, row in enumerate(links):
        for b, value in enumerate(row):
            if a != b and seen.setdefault((colours[a], colours[b]), value) != value:
                found.add(max((colours[a], colours[b]), key=lambda colour: (colours.count(colour), -colour)))
    return min(found, key=lambda colour: (-colours.count(colour), colour), default=None)
