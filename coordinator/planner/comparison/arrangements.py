"""Which devices form which stages, in which order: all ways for a few devices, those that are alike told apart once.

Three devices a, b, c, of which b and c are interchangeable (the same class, memory and links):

    a | b | ab | ba? no: one group, its order decides nothing where no neighbour is a group | a-b | b-a | bc | a-bc | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from edgeswarm.profile import PlanningInstance

# Groups in the order of stages, each the places of its devices in replica order.
Arrangement = tuple[tuple[int, ...], ...]


def arrangements(instance: PlanningInstance, *, reduced: bool = True) -> Iterator[Arrangement]:
    """Every choice of devices, split into groups in order, at most as many as there are layers.

    reduced: leave out those that are the same as another one but for the names of like devices, for the order of a
    group where that decides nothing, or for a mirror. All else is there either way.
    """
    count = len(instance.devices)
    classes = like_devices(instance)
    seen: set[Arrangement] = set()
    for size in range(1, count + 1):
        for order in itertools.permutations(range(count), size):
            for stages in range(1, min(size, instance.model.layer_count) + 1):
                for cuts in itertools.combinations(range(1, size), stages - 1):
                    edges = (0, *cuts, size)
                    groups = tuple(order[edges[i] : edges[i + 1]] for i in range(stages))
                    key = _canonical(instance, groups, classes) if reduced else groups
                    if key not in seen:
                        seen.add(key)
                        yield key


def like_devices(instance: PlanningInstance) -> tuple[int, ...]:
    """For each device the first one that it is interchangeable with: nothing else changes when the two change places."""
    first: list[int] = []
    for place in range(len(instance.devices)):
        first.append(next((other for other in range(place) if _alike(instance, other, place)), place))
    return tuple(first)


def _alike(instance: PlanningInstance, a: int, b: int) -> bool:
    one, other = instance.devices[a], instance.devices[b]
    if (one.profile, one.memory_bytes, one.base_bytes) != (other.profile, other.memory_bytes, other.base_bytes):
        return False
    source = instance.data_source
    if source is not None and (
        source.bandwidth[a] != source.bandwidth[b] or source.on_its_machine[a] != source.on_its_machine[b]
    ):
        return False
    places = list(range(len(instance.devices)))
    swapped = [b if place == a else a if place == b else place for place in places]
    tables = [rows for rows in (instance.network.bandwidth, instance.network.latencies) if rows]
    return all(rows[x][y] == rows[swapped[x]][swapped[y]] for rows in tables for x in places for y in places if x != y)


def _canonical(instance: PlanningInstance, groups: Arrangement, classes: tuple[int, ...]) -> Arrangement:
    """The one of all equivalent arrangements that stands for them."""
    sizes = [len(group) for group in groups]
    network, places = instance.network, range(len(instance.devices))
    alike_links = len({(network.bandwidth[a][b], network.latency(a, b)) for a in places for b in places if a != b})
    ordered = []
    next_to_a_group = False
    # Between stages the first replica of each sums up tied parameters: which one that is decides something.
    leads = len(groups) > 1 and any(tensor.gradient_bytes for tensor in instance.model.tied)
    for index, group in enumerate(groups):
        neighbours = sizes[max(0, index - 1) : index] + sizes[index + 1 : index + 2]
        if len(group) > 1 and (leads or max(neighbours, default=1) > 1):
            next_to_a_group = True
            ordered.append(group)
        elif alike_links <= 1 or len(group) <= 2:
            ordered.append(tuple(sorted(group, key=lambda place: (classes[place], place))))
        else:  # the order is that of the ring: where it begins decides nothing
            start = group.index(min(group, key=lambda place: (classes[place], place)))
            ordered.append(group[start:] + group[:start])
    options = [_renamed(ordered, classes)]
    if next_to_a_group and not leads and max(sizes) <= 2:
        options.append(_renamed([group[::-1] for group in ordered], classes))
    return min(options)


def _renamed(groups: list[tuple[int, ...]], classes: tuple[int, ...]) -> Arrangement:
    """Like devices numbered in the order in which they appear."""
    members: dict[int, list[int]] = {}
    for place, kind in enumerate(classes):
        members.setdefault(kind, []).append(place)
    taken = dict.fromkeys(members, 0)
    renamed = []
    for group in groups:
        names = []
        for place in group:
            kind = classes[place]
            names.append(members[kind][taken[kind]])
            taken[kind] += 1
        renamed.append(tuple(names))
    return tuple(renamed)
