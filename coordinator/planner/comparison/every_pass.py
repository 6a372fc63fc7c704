"""Every plan of the whole model on a group of devices in passes, as far as it might be the fastest: for the exhaustive search.

A device's share and passes decide how long it computes and when its last backward begins, behind which its group's all-reduce
can't be hidden. Of two numbers of passes the one that is better in both is the only one that counts:

    share 7    passes 1   f f f f f f f b b b b b b b       the last backward begins early
               passes 3   f f f b b b f f b b f f b b       it is done soonest, say
               passes 5   ...                               worse in both: left out
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance

from ..chunk_owners import owners_in
from ..cost_model import held_bytes, passes_of_share
from ..passing_memory import passing_table
from .round_floor import SLACK, Grid, RoundFloor


@dataclass(frozen=True)
class Way:
    """How a device computes a share: in so many passes. seconds: of all; last_backward: when it begins."""

    share: int
    passes: int
    seconds: float
    last_backward: float


class EveryPass:
    """Of one instance."""

    def __init__(self, instance: PlanningInstance, floor: RoundFloor) -> None:
        self._instance = instance
        self._passing = passing_table(instance)
        self._floor = floor
        self._layers = instance.model.layer_count
        self._least = instance.model.largest_least_batch
        self._ways: dict[int, list[Way]] = {}

    def plans(self, *, below: float) -> list[tuple[float, Plan]]:
        """Plans, with seconds that a round takes at least; the lowest first.

        below: seconds of a round; plans that can't be faster are left out.
        """
        found = []
        places = range(len(self._instance.devices))
        for count in range(1, len(places) + 1):
            for group in itertools.combinations(places, count):
                found += list(self._of_group(group, below))
        return sorted(found, key=lambda each: each[0])

    def _of_group(self, group: Sequence[int], below: float) -> Iterator[tuple[float, Plan]]:
        mini_batch = self._instance.training.mini_batch
        grid = Grid(
            (tuple(group),),
            mini_batch,
            np.array([[0, self._layers]], dtype=np.int64),
            (np.ones((1, len(group)), dtype=np.int64),),
        )
        reduce = float(self._floor.all_reduce_seconds(grid, 0).item())
        steps = [float(step.item()) for step in self._floor.step_seconds(grid, 0)]
        floors = [
            {
                way: max(way.seconds + step, way.last_backward + reduce + min(steps)) * SLACK
                for way in self._ways_of(place)
            }
            for place, step in zip(group, steps, strict=True)
        ]
        by_share = [_by_share(of_device, below) for of_device in floors]
        for ways in _combined(by_share, mini_batch):
            floor = max(of_device[way] for of_device, way in zip(floors, ways, strict=True))
            yield floor, self._plan(group, ways)

    def _ways_of(self, place: int) -> list[Way]:
        if place not in self._ways:
            shares = range(max(1, self._least), self._instance.training.mini_batch + 1)
            self._ways[place] = [way for share in shares for way in self._ways_of_share(place, share)]
        return self._ways[place]

    def _ways_of_share(self, place: int, share: int) -> list[Way]:
        device = self._instance.devices[place]
        profile = self._instance.profiles[device.profile]
        action = profile.overheads.action_seconds - profile.overheads.burst_seconds  # each may have idled before it
        kept: list[Way] = []
        for passes in range(1, share // max(1, self._least) + 1):
            stage = Stage(0, self._layers, {device.name: share}, 1, passes={device.name: passes})
            held = held_bytes(
                self._instance,
                first_layer=0,
                end_layer=self._layers,
                samples=share,
                in_flight=1,
                micro_batches=1,
                base_bytes=device.base_bytes,
                at_once=stage.at_once(device.name),
                passing=self._passing,
            )
            sizes = passes_of_share(stage, device.name, least_batch=self._least)
            held += self._instance.model.kernel_bytes(0, self._layers) * (len(set(sizes)) - 1)
            if held > device.memory_bytes:
                continue
            forward = sum(max(0.0, profile.forward(size, 0, self._layers) + action) for size in sizes)
            backward = [max(0.0, profile.backward(size, 0, self._layers) + action) for size in sizes]
            way = Way(share, passes, forward + sum(backward), forward + sum(backward[:-1]))
            if not any(other.seconds <= way.seconds and other.last_backward <= way.last_backward for other in kept):
                kept = [
                    other
                    for other in kept
                    if not (way.seconds <= other.seconds and way.last_backward <= other.last_backward)
                ]
                kept.append(way)
        return kept

    def _plan(self, group: Sequence[int], ways: Sequence[Way]) -> Plan:
        names = [self._instance.device_names[place] for place in group]
        stage = Stage(
            0,
            self._layers,
            {name: way.share for name, way in zip(names, ways, strict=True)},
            1,
            owners_in(self._instance, names, first_layer=0, end_layer=self._layers),
            {name: way.passes for name, way in zip(names, ways, strict=True)},
        )
        return Plan("exhaustive", self._instance.training.mini_batch, 1, (stage,))


def _by_share(floors: Mapping[Way, float], below: float) -> dict[int, list[Way]]:
    """The ways that leave a round below so many seconds, by their share."""
    found: dict[int, list[Way]] = {}
    for way, floor in floors.items():
        if floor < below:
            found.setdefault(way.share, []).append(way)
    return found


def _combined(by_share: Sequence[Mapping[int, list[Way]]], samples: int) -> Iterator[tuple[Way, ...]]:
    """A way for each device, with all samples together."""
    mine, others = by_share[0], by_share[1:]
    if not others:
        yield from ((way,) for way in mine.get(samples, ()))
        return
    if samples > sum(max(rest, default=0) for rest in by_share):
        return
    for share, ways in mine.items():
        for behind in _combined(others, samples - share):
            for way in ways:
                yield (way, *behind)
