"""Devices bundled into units of like kind, so that a search over sets of devices stays small. DeepCEE's two levels.

First by network: devices whose links to all others are alike; then, among those, by compute: class and memory. The
widest allowed difference grows until there are few enough sets. Many rooms differ by more than that, and the closest become
one. Where even that leaves too many, as with a hundred devices, some devices of a kind go together everywhere: they are one unit.

    100 devices -> 4 kinds (2 rooms x 2 classes) of 25 devices -> 4 kinds of 5 units of 5 devices
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model_costs import FloatArray

from .problem import SearchProblem

# Pairs (set of units, part of it) that one search looks at for each micro-batch size.
MOST_TRANSITIONS = 2200
# With fewer, devices that differ by no more than a measurement does are told apart.
FEW_TRANSITIONS = 300

_CLASS_BEFORE_LINK = 2.0
_FACTORS = (0.12, 0.3, 1.0, 3.0, 10.0)
# Devices in a room have links to all others that differ by less.
_ROOM_FACTOR = 0.3


@dataclass(frozen=True)
class UnitKind:
    """Units that count as alike. units: each a tuple of devices; all but the last of a kind have the same number."""

    units: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(device for unit in self.units for device in unit)

    @property
    def unit_size(self) -> int:
        return len(self.units[0])


def make_units(problem: SearchProblem, *, most_transitions: int = MOST_TRANSITIONS) -> tuple[UnitKind, ...]:
    """Units of devices, each kind's in canonical order: single devices of exactly like kind where these are few enough."""
    clusters = problem.members
    if transitions([len(members) for members in clusters]) > min(FEW_TRANSITIONS, most_transitions):
        for factor in _FACTORS:
            clusters = _clusters(problem, factor)
            # With two units of each kind at least; more is for larger units to bring down.
            if transitions([min(len(members), 2) for members in clusters]) <= most_transitions:
                break
        clusters = _closest_merged(problem, clusters, most_transitions)
    size = 1
    while transitions([-(-len(members) // size) for members in clusters]) > most_transitions:
        size += 1
    return tuple(
        UnitKind(tuple(members[place : place + size] for place in range(0, len(members), size))) for members in clusters
    )


def _closest_merged(
    problem: SearchProblem, clusters: Sequence[tuple[int, ...]], most_transitions: int
) -> list[tuple[int, ...]]:
    """The two closest become one, the smallest of these, until a unit of each is few enough. Members of one room stay next to
    each other. Classes are held apart for longer than rooms: a kind counts as its first device computes.
    """
    left = list(clusters)
    distance = np.maximum(_link_distance(problem), _CLASS_BEFORE_LINK * _compute_distance(problem))

    def apart(pair: tuple[int, int]) -> tuple[float, int]:
        one, other = (left[place] for place in pair)
        return float(distance[np.ix_(one, other)].max()), len(one) + len(other)

    while len(left) > 1 and transitions([1] * len(left)) > most_transitions:
        a, b = min(itertools.combinations(range(len(left)), 2), key=apart)
        left[a] += left.pop(b)
    return left


def groups_by_room(problem: SearchProblem) -> list[tuple[int, ...]]:
    """Groups of devices near to each other, each ascending: of the fastest room, of the fastest two, and so on, all of them or
    those as fast as some class.

    Units of many devices each don't stop at a room's wall: where devices are many, no set of them may be one of these.
    """
    rooms = _agglomerate(_link_distance(problem), math.log1p(_ROOM_FACTOR), list(range(problem.device_count)))
    seconds = _whole_model_seconds(problem)
    rooms.sort(key=lambda room: (-sum(1 / seconds[device] for device in room), sorted(room)))
    classes = sorted(set(seconds))
    found: dict[tuple[int, ...], None] = {}
    for count in _some_of(len(rooms)):
        near = sorted(device for room in rooms[:count] for device in room)
        for fast in _some_of(len(classes)):
            found[tuple(device for device in near if seconds[device] <= classes[fast - 1])] = None
    return [group for group in found if group]


def _some_of(count: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... and count itself."""
    steps = sorted({step << power for power in range(count.bit_length()) for step in (1, 3)} | {count})
    return [step for step in steps if step <= count]


def transitions(counts: list[int]) -> int:
    """How many pairs (set, part of it) there are with so many units of each kind."""
    return math.prod((count + 1) * (count + 2) // 2 for count in counts)


def _clusters(problem: SearchProblem, factor: float) -> list[tuple[int, ...]]:
    """Devices that differ by at most 1 + factor: by their links first, then by compute and memory."""
    most = math.log1p(factor)
    found: list[tuple[int, ...]] = []
    for room in _agglomerate(_link_distance(problem), most, list(range(problem.device_count))):
        found += [tuple(sorted(cluster)) for cluster in _agglomerate(_compute_distance(problem), most, room)]
    return sorted(found)


def _link_distance(problem: SearchProblem) -> FloatArray:
    """[devices, devices]: the widest logarithmic difference between two devices' links to any third one."""
    count = problem.device_count
    links = np.log(np.where(np.eye(count, dtype=bool), 1.0, np.array(problem.links)))
    distance = np.zeros((count, count))
    for a in range(count):
        for rows in (links, links.T):
            differences = np.abs(rows - rows[a])
            differences[np.eye(count, dtype=bool)] = 0.0
            differences[:, a] = 0.0
            distance[a] = np.maximum(distance[a], differences.max(axis=1))
    both_ways: FloatArray = np.maximum(distance, distance.T)
    return both_ways


def _compute_distance(problem: SearchProblem) -> FloatArray:
    speed = np.log(_whole_model_seconds(problem))
    memory = np.log(np.maximum(np.array(problem.memory), 1.0))
    result: FloatArray = np.maximum(
        np.abs(speed[:, np.newaxis] - speed[np.newaxis, :]), np.abs(memory[:, np.newaxis] - memory[np.newaxis, :])
    )
    return result


def _whole_model_seconds(problem: SearchProblem) -> list[float]:
    """By device: of a mini-batch."""
    forward, backward = problem.seconds
    seconds = np.maximum(forward[:, -1, -1] + backward[:, -1, -1], 1e-12)
    return [float(seconds[kind]) for kind in problem.class_of]


def _agglomerate(distance: FloatArray, most: float, members: list[int]) -> list[list[int]]:
    """Complete linkage: the two closest clusters become one while all of their members are within `most`."""
    clusters = [[member] for member in members]
    between = distance[np.ix_(members, members)].copy()
    np.fill_diagonal(between, np.inf)
    while len(clusters) > 1:
        a, b = sorted(divmod(int(np.argmin(between)), len(clusters)))
        if between[a, b] > most:
            break
        clusters[a] += clusters.pop(b)
        between[a] = np.maximum(between[a], between[b])
        between[:, a] = between[a]
        between = np.delete(np.delete(between, b, axis=0), b, axis=1)
        np.fill_diagonal(between, np.inf)
    return clusters
