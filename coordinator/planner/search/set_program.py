"""A dynamic program over sets of devices: cut points, groups, order and idle devices in one search.

Asteroid's program fixes the order of the devices; this one keeps, for every set S of units, the best pipelines of the
layers from cut i to the end on exactly S. A new head group takes some units out of S:

    Q(i, S) = best over groups g of S and cuts j of   [ g: layers i to j ]-link-[ Q(j, S without g) ]

so every order of the groups is in it, and the answer is the best Q(0, S) over all S: who isn't in S stays idle.
Devices of one kind are interchangeable, so S is how many of each kind, not which.

The round is estimated as V + R (see asteroid.py), with the two directions of a link apart. x is forward and backward of
a stage, f and b of a link, way what a micro-batch takes from the head to the end and back:

    V = max( M x_head,  M way / K,                              the head computes, or waits with K in flight
             x_head + f + b + (M - 1) max(f, b) + way_tail,     the link carries
             x_head + f + b + V_tail )
    R = max( end_head,  R_tail - b_head - b )                   what all-reduce and optimizer's step add
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray

from .candidate import Outline
from .group_costs import GroupCosts, GroupCostTables
from .runs import Runs

# Pipelines kept of each (cut, set): by V + R, by V, and by V and the way to the end.
KEPT = 3


@dataclass(frozen=True)
class SketchedPipeline:
    """What the program found for one set of devices; seconds by its own estimate."""

    seconds: float
    outline: Outline


@dataclass
class _States:
    """All Q(i, S): arrays [sets, KEPT, cuts]. head, cut, tail_kept, held: how a pipeline begins and goes on; -1 for none."""

    execution: FloatArray
    extra: FloatArray
    way: FloatArray
    share: FloatArray
    head: IntArray
    cut: IntArray
    tail_kept: IntArray
    held: IntArray

    @classmethod
    def empty(cls, sets: int, cuts: int) -> _States:
        def seconds() -> FloatArray:
            return np.full((sets, KEPT, cuts), np.inf)

        def places() -> IntArray:
            return np.full((sets, KEPT, cuts), -1, dtype=np.int64)

        return cls(seconds(), seconds(), seconds(), seconds(), places(), places(), places(), places())


@dataclass
class _Tails:
    """The same by run of layers: what goes on behind it, from the cut where it ends. Arrays [sets, KEPT, runs].

    head: [sets, KEPT, cuts] the group that stands there.
    """

    execution: FloatArray
    extra: FloatArray
    way: FloatArray
    share: FloatArray
    head: IntArray

    @classmethod
    def empty(cls, sets: int, runs: Runs) -> _Tails:
        def seconds() -> FloatArray:
            return np.full((sets, KEPT, len(runs)), np.inf)

        return cls(seconds(), seconds(), seconds(), seconds(), np.zeros((sets, KEPT, runs.cuts), dtype=np.int64))

    def note(self, states: _States, index: int, *, ends: IntArray, most_samples: int) -> None:
        """Takes over a set. ends: [runs] the cut where each ends. most_samples: more than these no replica has."""
        self.execution[index] = states.execution[index][:, ends]
        self.extra[index] = states.extra[index][:, ends]
        self.way[index] = states.way[index][:, ends]
        self.share[index] = np.minimum(states.share[index], most_samples)[:, ends]
        self.head[index] = np.maximum(states.head[index], 0)


@dataclass(frozen=True)
class _Heads:
    """Groups that go before tails: arrays [heads]. held: which K of the costs. tails: which set stands behind."""

    groups: IntArray
    held: IntArray
    tails: IntArray


class SetProgram:
    """The program over the groups and cuts of some tables."""

    def __init__(self, tables: GroupCostTables) -> None:
        self.tables = tables
        self.groups = tables.groups
        counts = self.groups.max(axis=0)
        strides = np.cumprod([1, *(counts[::-1] + 1)])[:-1][::-1]
        self._index = self.groups @ strides
        between = tables.between()
        # Of links all alike one number is enough, and the program is faster.
        finite = np.unique(between[np.isfinite(between)])
        self._uniform = float(finite[0]) if len(finite) == 1 else None
        self._between = between
        self._runs = tables.runs
        self._cut_bytes = np.array([tables.problem.cut_bytes[cut] for cut in tables.cuts])
        self._answered_bytes = np.array([tables.problem.answered_bytes[cut] for cut in tables.cuts])
        # Mostly all that goes there comes back, and one array stands for both.
        self._as_much_back = bool(np.array_equal(self._cut_bytes[1:-1], self._answered_bytes[1:-1]))
        # [KEPT, runs]: where an array [cuts, KEPT * cuts] has what goes on behind each run.
        cuts = self._runs.cuts
        kept = cuts * np.arange(KEPT)[:, None]
        self._spread_places: IntArray = self._runs.first * (KEPT * cuts) + kept + self._runs.end

    def run(self, costs: GroupCosts, *, micro_batches: float) -> list[SketchedPipeline]:
        """The best pipelines of every set of devices, the fastest first. micro_batches: of a round, a smaller one in part."""
        states = _States.empty(len(self.groups), self._runs.cuts)
        tails = _Tails.empty(len(self.groups), self._runs)
        full = len(self.groups) - 1
        for index in range(1, len(self.groups)):
            inside = np.flatnonzero((self.groups <= self.groups[index]).all(axis=1))
            before = inside[1:-1]
            held, which = np.nonzero(costs.worthwhile[:, before])
            heads = _Heads(before[which], held, index - self._index[before[which]])
            rows = 1 if index == full else self._runs.cuts - 1
            self._fill(states, tails, costs, index, micro_batches=micro_batches, heads=heads, rows=rows)
            tails.note(states, index, ends=self._runs.end, most_samples=costs.micro_batch)
        return self._found(states, costs)

    def _fill(
        self,
        states: _States,
        tails: _Tails,
        costs: GroupCosts,
        index: int,
        *,
        micro_batches: float,
        heads: _Heads,
        rows: int,
    ) -> None:
        """Work out Q(i, S) for the cuts i < rows: of a head that takes all, and of heads before a shorter pipeline."""
        last = self._runs.cuts - 1
        to_end = self._runs.to_end[:rows]
        parts: list[tuple[FloatArray, ...]] = []
        for place in range(len(costs.in_flight)):
            seconds = costs.seconds[place][index, to_end]
            execution = np.where(np.isfinite(seconds), micro_batches * seconds, np.inf)
            end = np.where(np.isfinite(seconds), costs.end[index, to_end], np.inf)
            share = costs.largest_share[place][index, to_end]
            places = np.broadcast_to(np.array([[index], [last], [0], [place]]), (4, rows))
            parts.append((execution[:, None], end[:, None], seconds[:, None], share[:, None], places[:, :, None]))
        if len(heads.groups):
            parts.append(self._joined(tails, costs, micro_batches=micro_batches, heads=heads, rows=rows))
        execution, extra, way, share = (np.concatenate([part[which] for part in parts], axis=1) for which in range(4))
        places = np.concatenate([part[4] for part in parts], axis=2)
        every = np.arange(rows)
        total = execution + extra
        for kept, score in enumerate((total, execution, execution + way)):
            best = np.argmin(score, axis=1)
            states.execution[index, kept, :rows] = execution[every, best]
            states.extra[index, kept, :rows] = extra[every, best]
            states.way[index, kept, :rows] = way[every, best]
            states.share[index, kept, :rows] = share[every, best]
            for number, target in enumerate((states.head, states.cut, states.tail_kept, states.held)):
                target[index, kept, :rows] = places[number, every, best]

    def _joined(
        self, tails: _Tails, costs: GroupCosts, *, micro_batches: float, heads: _Heads, rows: int
    ) -> tuple[FloatArray, ...]:
        """Each head [heads] over each run that begins at one of the first cuts [runs], before each kept tail [KEPT] behind it.

        Of the heads and tails the best is chosen at once, so that arrays [rows, KEPT * cuts] come back: V, R, way, share
        and the places of _States.
        """
        cuts, runs = self._runs.cuts, self._runs.of_first_cuts(rows)
        groups, behind = heads.groups, heads.tails
        seconds = costs.seconds[heads.held, groups, :runs][:, None]
        share = np.minimum(costs.largest_share[heads.held, groups, :runs], costs.micro_batch)[:, None]
        # The replica that takes most on either side has most to send or to receive, and all send at once.
        most = np.maximum(share, tails.share[behind, :, :runs])
        forward_link, backward_link = self._link(most, tails.head[behind], groups=groups)
        # In place, since making such large arrays anew takes longer than what is worked out in them.
        until_tail = forward_link + backward_link
        until_tail += seconds
        way = tails.way[behind, :, :runs]
        way += until_tail
        execution = np.maximum(forward_link, backward_link)
        execution *= micro_batches - 1
        execution += way
        np.maximum(execution, micro_batches * seconds, out=execution)
        other = tails.execution[behind, :, :runs]
        other += until_tail
        np.maximum(execution, other, out=execution)
        in_flight = np.array(costs.in_flight, dtype=np.float64)[heads.held][:, None, None]
        np.multiply(way, micro_batches / in_flight, out=other)
        np.maximum(execution, other, out=execution)
        extra = tails.extra[behind, :, :runs]
        extra -= costs.backward[groups, :runs][:, None]
        extra -= backward_link
        np.maximum(extra, costs.end[groups, :runs][:, None], out=extra)
        best = np.argmin(np.add(execution, extra, out=other), axis=0)[None]

        def chosen(values: FloatArray) -> FloatArray:
            """Of the best head of each tail [KEPT, runs]."""
            return np.asarray(np.take_along_axis(np.broadcast_to(values, execution.shape), best, axis=0)[0])

        def spread(values: FloatArray, elsewhere: float) -> FloatArray:
            flat = np.full(rows * KEPT * cuts, elsewhere, dtype=values.dtype)
            flat[self._spread_places[:, :runs]] = values
            return flat.reshape(rows, KEPT * cuts)

        shape = (rows, KEPT * cuts)
        places = np.stack(
            [
                spread(groups[best[0]], -1),
                np.broadcast_to(np.tile(np.arange(cuts), KEPT), shape),
                np.broadcast_to(np.repeat(np.arange(KEPT), cuts), shape),
                spread(heads.held[best[0]], -1),
            ]
        )
        least = chosen(execution)
        found = (least, np.where(np.isfinite(least), chosen(extra), np.inf), chosen(way), chosen(share))
        return *(spread(values, np.inf) for values in found), places

    def _link(self, most: FloatArray, behind: IntArray, *, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Seconds of a micro-batch over the cut where each run ends, forward and backward: [heads, KEPT, runs].

        most: samples of the replica that has most of them on either side; used up. behind: [heads, KEPT, cuts] the group there.
        """
        latency = self.tables.problem.latency
        ends = self._runs.end[: most.shape[-1]]
        if self._uniform is not None:
            backward = most
            if not self._as_much_back:
                backward = most * (self._answered_bytes / self._uniform)[ends] + latency
            most *= (self._cut_bytes / self._uniform)[ends]
            most += latency
            return most, backward
        forward = np.take(self._cut_bytes / self._between[groups[:, None, None], behind], ends, axis=2)
        forward *= most
        forward += latency
        most *= np.take(self._answered_bytes / self._between[behind, groups[:, None, None]], ends, axis=2)
        most += latency
        return forward, most

    def _found(self, states: _States, costs: GroupCosts) -> list[SketchedPipeline]:
        totals = states.execution[:, :, 0] + states.extra[:, :, 0]
        found: dict[Outline, float] = {}
        for flat in np.argsort(totals, axis=None, kind="stable"):
            index, kept = divmod(int(flat), KEPT)
            if not np.isfinite(totals[index, kept]):
                break
            outline = self._outline(states, costs, index, kept)
            found.setdefault(outline, float(totals[index, kept]))
        return [SketchedPipeline(seconds, outline) for outline, seconds in found.items()]

    def _outline(self, states: _States, costs: GroupCosts, index: int, kept: int) -> Outline:
        """Walk from the first layer to the last, handing out the units of each kind in order."""
        last = len(self.tables.cuts) - 1
        cut = 0
        cuts, groups, in_flight = [0], [], []
        used = [0] * len(self.tables.kinds)
        while cut != last:
            head = int(states.head[index, kept, cut])
            place = int(states.held[index, kept, cut])
            next_kept = int(states.tail_kept[index, kept, cut])
            next_cut = int(states.cut[index, kept, cut])
            group: list[int] = []
            for kind, count in enumerate(self.groups[head]):
                units = self.tables.kinds[kind].units[used[kind] : used[kind] + int(count)]
                group += [device for unit in units for device in unit]
                used[kind] += int(count)
            groups.append(tuple(group))
            in_flight.append(costs.in_flight[place])
            cuts.append(self.tables.cuts[next_cut])
            index -= int(self._index[head])
            kept, cut = next_kept, next_cut
        return Outline(costs.micro_batch, tuple(cuts), tuple(groups), tuple(in_flight))
