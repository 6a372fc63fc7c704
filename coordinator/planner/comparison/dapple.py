"""DAPPLE's planner (PPoPP 2021, section 4): a dynamic program over cut points and where each stage's devices are.

A state is a cut j and which devices are taken; what is kept for it is the pipeline of the layers before j on these
devices that gives the shortest round with all layers behind j as one more stage on all devices that are left:

    layers    0 . . . . . . i . . . . j . . . . . . . L
              [ kept for i ]-[ new     ]-[ last stage  ]
    devices     taken then     its own     all the others

The new stage's devices are allotted in three ways: fresh first (a room of which none is taken, for fast links inside the
stage), append first (a room of which some are taken, to fill gaps), scatter first (evenly over the rooms in use, or over
all of them). A room is what a server is there. Devices count as equal: layers take what they take on the average one,
and a group shares evenly. A stage holds as many micro-batches as there are stages from it to the end, twice that less
one where links take long: here 2(P-p)-1, or as many as memory holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import PlanningInstance

from ..asteroid import FoundPipeline
from ..cost_model import in_flight_limit
from ..shortage import Shortage
from .dapple_latency import round_latency
from .equal_shares import StageCut, average_layer_seconds, cut_shortage, found_pipeline, most_samples_of_runs
from .rooms import rooms_of

BoolArray = npt.NDArray[np.bool_]
# How many devices of each room are taken.
Taken = tuple[int, ...]


def dapple(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """The planner's pipeline at one micro-batch size; None where it fits no memory or takes longer than `slowest_round`.

    First among stages that hold 3 micro-batches in flight, then 2, then 1.
    """
    for in_flight in (3, 2, 1):
        cuts = _Program(instance, micro_batch, in_flight=in_flight).best()
        found = None if cuts is None else found_pipeline(instance, cuts, micro_batch)
        if found is not None:
            return found if found.round_seconds <= slowest_round else None
    return None


def dapple_shortage(instance: PlanningInstance, micro_batch: int) -> tuple[Shortage, ...]:
    """What the devices lack for the planner's choice without a look at memory."""
    cuts = _Program(instance, micro_batch, in_flight=None).best()
    assert cuts is not None, "without a limit one stage over all devices is always there"
    return cut_shortage(instance, cuts, micro_batch)


def allotments(taken: Taken, sizes: Taken, count: int) -> list[Taken]:
    """Which rooms `count` more devices may come from, one entry for each policy; the same choice only once.

    sizes: devices of each room. Fresh first, append first, scatter first; a policy that runs out of its rooms goes on
    with the others.
    """
    rooms = range(len(sizes))
    free = [size - used for size, used in zip(sizes, taken, strict=True)]
    if sum(free) < count:
        return []
    fresh = sorted(rooms, key=lambda room: (taken[room] > 0, room))
    append = sorted(rooms, key=lambda room: (taken[room] == 0, room))
    in_use = [room for room in rooms if taken[room] > 0 and free[room] > 0] or list(rooms)
    choices = [_fill(free, fresh, count), _fill(free, append, count), _scatter(free, in_use, count)]
    return list(dict.fromkeys(choices))


def _fill(free: Sequence[int], order: Sequence[int], count: int) -> Taken:
    more = [0] * len(free)
    for room in order:
        more[room] = min(free[room], count - sum(more))
    return tuple(more)


def _scatter(free: Sequence[int], rooms: Sequence[int], count: int) -> Taken:
    more = [0] * len(free)
    while sum(more) < count:
        with_room = [room for room in rooms if more[room] < free[room]]
        with_room = with_room or [room for room in range(len(free)) if more[room] < free[room]]
        more[min(with_room, key=lambda room: more[room])] += 1
    return tuple(more)


@dataclass
class _State:
    """Pipelines of the layers before each cut j on the devices taken, arrays [layer_count + 1].

    seconds: of the round with the last stage behind, whether that fits memory or not; infinite where there is none.
    steps: F, B and all-reduce of the pipeline's 2 * stages - 1 steps, [3, steps, layer_count + 1], zeros in front where it
    has fewer. cut, before: the last stage's first layer, and the state of what comes before it.
    """

    seconds: FloatArray
    steps: FloatArray
    cut: IntArray
    before: list[Taken | None]


class _Program:
    """in_flight: micro-batches that every stage but the last must hold; None for no look at memory."""

    def __init__(self, instance: PlanningInstance, micro_batch: int, *, in_flight: int | None) -> None:
        self._instance = instance
        self._micro_batch = micro_batch
        self._rounds = -(-instance.training.mini_batch // micro_batch)
        self._in_flight = in_flight
        self._rooms = rooms_of(instance)
        self._sizes = tuple(len(room) for room in self._rooms)
        self._layers = instance.model.layer_count
        forward, backward = average_layer_seconds(instance, micro_batch)
        self._forward = np.concatenate([np.zeros(1), np.cumsum(forward)])
        self._backward = np.concatenate([np.zeros(1), np.cumsum(backward)])
        self._most_steps = 2 * len(instance.devices) - 1
        self._held: dict[tuple[tuple[int, int], int], IntArray] = {}

    def best(self) -> list[StageCut] | None:
        """The stages of the shortest round, one stage over all devices included."""
        start = (0,) * len(self._sizes)
        everything = self._places(start, self._sizes)
        seconds = np.inf
        if self._fits(everything, last=True)[0, self._layers]:
            whole = [np.full(1, table[-1] / len(everything)) for table in (self._forward, self._backward)]
            reduce = self._all_reduce(everything)[0, self._layers]
            seconds = float(round_latency([whole[0]], [whole[1]], [np.full(1, reduce)], self._rounds)[0])
        best: tuple[float, Taken | None, int] = (seconds, None, 0)
        states: dict[Taken, _State] = {start: self._start()}
        for count in range(sum(self._sizes) - 1):
            for taken in [key for key in states if sum(key) == count]:
                self._extend(states, taken)
        for taken, state in states.items():
            rest = self._places(taken, self._sizes)
            whole_round = np.where(self._fits(rest, last=True)[:, self._layers], state.seconds, np.inf)
            cut = int(np.argmin(whole_round))
            if whole_round[cut] < best[0] and taken != start:
                best = (float(whole_round[cut]), taken, cut)
        if best[1] is None:
            return [StageCut(0, self._layers, everything)] if np.isfinite(best[0]) else None
        return self._walk_back(states, best[1], best[2])

    def _start(self) -> _State:
        count = self._layers + 1
        seconds = np.where(np.arange(count) == 0, 0.0, np.inf)
        return _State(seconds, np.zeros((3, 0, count)), np.zeros(count, dtype=np.int64), [None] * count)

    def _extend(self, states: dict[Taken, _State], taken: Taken) -> None:
        """One more stage [i, j) behind every pipeline of a state, for all i and j at once."""
        state = states[taken]
        left = sum(self._sizes) - sum(taken)
        for count in range(1, left):
            for more in allotments(taken, self._sizes, count):
                after = tuple(a + b for a, b in zip(taken, more, strict=True))
                new = self._extended(state, taken, after)
                if new is not None:
                    self._keep(states, after, new)

    def _extended(self, state: _State, taken: Taken, after: Taken) -> _State | None:
        """The state after: for each j the best i; None where the new stage fits no memory anywhere."""
        group, rest = self._places(taken, after), self._places(after, self._sizes)
        possible = self._fits(group, last=False) & np.isfinite(state.seconds)[:, np.newaxis]
        possible[:, self._layers] = False  # something is left for the last stage
        first, end = np.nonzero(possible)
        if not len(first):
            return None
        steps = [state.steps[:, s, first] for s in range(state.steps.shape[1])]
        if any(taken):
            steps.append(self._link_behind(state, taken, group)[:, first])
        steps.append(self._stage(group)[:, first, end])
        link = self._link(group, rest)[:, end]
        last = self._stage(rest)[:, end, self._layers]
        every = [*steps, link, last]
        seconds = round_latency([s[0] for s in every], [s[1] for s in every], [s[2] for s in every], self._rounds)
        ranked = np.lexsort((first, seconds, end))
        ends, best = np.unique(end[ranked], return_index=True)
        best = ranked[best]
        count = self._layers + 1
        new = _State(np.full(count, np.inf), np.zeros((3, self._most_steps, count)), np.zeros(count, np.int64), [])
        new.before = [taken] * count
        new.seconds[ends] = seconds[best]
        new.cut[ends] = first[best]
        kept = np.stack(steps[-self._most_steps :], axis=1)[:, :, best]
        new.steps[:, self._most_steps - kept.shape[1] :, ends] = kept
        return new

    def _keep(self, states: dict[Taken, _State], after: Taken, new: _State) -> None:
        """Replaces what a state has where the new pipelines are faster."""
        if after not in states:
            states[after] = new
            return
        old = states[after]
        better = new.seconds < old.seconds
        old.seconds = np.where(better, new.seconds, old.seconds)
        old.steps = np.where(better, new.steps, old.steps)
        old.cut = np.where(better, new.cut, old.cut)
        old.before = [a if is_better else b for is_better, a, b in zip(better, new.before, old.before, strict=True)]

    def _walk_back(self, states: dict[Taken, _State], taken: Taken, cut: int) -> list[StageCut]:
        found = [StageCut(cut, self._layers, self._places(taken, self._sizes))]
        while any(taken):
            state = states[taken]
            before = state.before[cut]
            assert before is not None
            first = int(state.cut[cut])
            found.append(StageCut(first, cut, self._places(before, taken)))
            taken, cut = before, first
        return found[::-1]

    # --- costs --------------------------------------------------------------------------------------------------

    def _places(self, taken: Taken, after: Taken) -> tuple[int, ...]:
        """The devices that are taken after and not before."""
        return tuple(place for room, a, b in zip(self._rooms, taken, after, strict=True) for place in room[a:b])

    def _stage(self, group: tuple[int, ...]) -> FloatArray:
        """[3, i, j]: F, B and all-reduce of layers [i, j) on a group; 0 where j <= i."""
        size = len(group)
        forward = np.maximum(self._forward[np.newaxis, :] - self._forward[:, np.newaxis], 0.0) / size
        backward = np.maximum(self._backward[np.newaxis, :] - self._backward[:, np.newaxis], 0.0) / size
        return np.stack([forward, backward, self._all_reduce(group)])

    def _all_reduce(self, group: tuple[int, ...]) -> FloatArray:
        """[i, j]: seconds of a ring over the group's slowest link."""
        places = np.arange(self._instance.model.layer_count + 1)
        gradients = self._instance.model.gradient_bytes_of_runs(places[:, np.newaxis], places[np.newaxis, :])
        gradients = np.maximum(gradients, 0.0)
        size = len(group)
        if size == 1:
            return np.zeros_like(gradients)
        slowest = self._instance.network.slowest((a, b) for a in group for b in group if a != b)
        result: FloatArray = 2 * (size - 1) * gradients / size / slowest
        return result

    def _link(self, senders: tuple[int, ...], receivers: tuple[int, ...]) -> FloatArray:
        """[3, cut]: a micro-batch over a cut, there and back, over the slowest pair."""
        slowest = self._instance.network.slowest((a, b) for a in senders for b in receivers)
        model, latency = self._instance.model, self._instance.network.latency_seconds
        there = model.cut_bytes * self._micro_batch / slowest + latency
        back = model.answered_bytes * self._micro_batch / slowest + latency
        return np.stack([there, back, np.zeros_like(there)])

    def _link_behind(self, state: _State, taken: Taken, group: tuple[int, ...]) -> FloatArray:
        """[3, cut]: from the last stage of a state's pipeline, which has other devices for other cuts, to a group."""
        seconds = np.zeros((3, self._layers + 1))
        for before in set(state.before) - {None}:
            assert before is not None
            here = np.array([other == before for other in state.before])
            seconds = np.where(here, self._link(self._places(before, taken), group), seconds)
        return seconds

    def _fits(self, group: tuple[int, ...], *, last: bool) -> BoolArray:
        """[i, j]: whether the group's memory holds a micro-batch of layers [i, j)."""
        count = self._layers + 1
        runs = np.triu(np.ones((count, count), dtype=bool), k=1)
        if self._in_flight is None:
            return runs
        in_flight = in_flight_limit(stages_to_end=1 if last else 2, micro_batches=self._rounds, most=self._in_flight)
        room = sum(self._most(place, in_flight) for place in group)
        return runs & (room >= self._micro_batch)

    def _most(self, place: int, in_flight: int) -> IntArray:
        """[i, j]: samples that a device holds of layers [i, j)."""
        device = self._instance.devices[place]
        key = ((device.memory_bytes, device.base_bytes), in_flight)
        if key not in self._held:
            self._held[key] = most_samples_of_runs(
                self._instance, place, in_flight=in_flight, micro_batches=self._rounds
            )
        return self._held[key]
