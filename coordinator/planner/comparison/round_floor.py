"""Seconds that no round of a plan can beat, for many plans at once: the exhaustive search prunes with it.

All plans of one arrangement of devices at one micro-batch size form a grid: cut points times the shares of each group.
A floor is the longest of paths that every round has in it, taken as if nothing else were under way:

    way in            work of a round           way out
    F ---> F ---> | F F F F B B B B | ---> B ---> B -> step       for each replica, link and card in between

A micro-batch that ends the round has come in, gone on to the end, and come back; M of them pass every replica and link.
Frames that the processor handles, what else shares a card, and the samples' way only add to it.
Later stages may end a round after the first one has begun the next: their own all-reduce counts with their own work alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgeswarm.chunk_owners import exchange_steps
from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import PlanningInstance

from .arrangements import Arrangement

Scalar = TypeVar("Scalar", bound=np.generic)

# Rounding of sums in another order.
SLACK = 1 - 1e-9


@dataclass(frozen=True)
class Grid:
    """Plans of one arrangement: every row of `cuts` [C, stages + 1] with every row of each of `shares` [N_p, replicas].

    An array over the grid has the shape [C, N_0, N_1, ...].
    """

    arrangement: Arrangement
    micro_batch: int
    cuts: IntArray
    shares: tuple[IntArray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.cuts), *(len(rows) for rows in self.shares))

    def of_last(self, mini_batch: int, names: Sequence[str]) -> Grid:
        """The same plans with their shares of a round's last micro-batch, which may be smaller; see edgeswarm/samples.py."""
        rest = mini_batch % self.micro_batch
        if rest == 0:
            return self
        shares = []
        for group, rows in zip(self.arrangement, self.shares, strict=True):
            parts = rest * rows // self.micro_batch
            over = rest * rows % self.micro_batch
            by_name = np.argsort(np.argsort([names[place] for place in group]))
            order = np.argsort(np.argsort(-over * len(group) + by_name[np.newaxis, :], axis=1), axis=1)
            missing = rest - parts.sum(axis=1, keepdims=True)
            shares.append(parts + (order < missing))
        return Grid(self.arrangement, rest, self.cuts, tuple(shares))

    def one(self, index: Sequence[int]) -> Grid:
        """The grid of just one plan."""
        rows = tuple(rows[i : i + 1] for rows, i in zip(self.shares, index[1:], strict=True))
        return Grid(self.arrangement, self.micro_batch, self.cuts[index[0] : index[0] + 1], rows)


@dataclass(frozen=True)
class Paths:
    """Of each stage's replicas, over the grid, in seconds: forward, backward; `arrive`, the first forward's earliest begin;
    `there_and_back`, from the begin of a micro-batch's forward to the end of its backward; `out`, from there to the
    round's end."""

    forward: list[list[FloatArray]]
    backward: list[list[FloatArray]]
    arrive: list[list[FloatArray]]
    there_and_back: list[list[FloatArray]]
    out: list[list[FloatArray]]


class RoundFloor:
    """The floors of one instance."""

    def __init__(self, instance: PlanningInstance) -> None:
        self.instance = instance
        self._latency = instance.network.least_latency_seconds
        self._matrix = instance.network.matrix
        finite = np.where(np.isfinite(self._matrix), self._matrix, 0.0)
        self._egress = np.where(finite.max(axis=1) > 0, finite.max(axis=1), np.inf)
        ingress = finite.max(axis=0)
        if (source := instance.data_source) is not None:
            ingress = np.maximum(ingress, np.where(source.on_its_machine, 0.0, source.bandwidth))
        self._ingress = np.where(ingress > 0, ingress, np.inf)
        self._tables: dict[str, tuple[FloatArray, FloatArray]] = {}

    def floors(self, grid: Grid) -> FloatArray:
        """Over the grid: seconds of a round at the least, whatever the number of micro-batches in flight."""
        best = np.zeros(grid.shape)
        for bound in self._bounds(_Round(self, grid, self._last(grid))):
            np.maximum(best, bound, out=best)
        result: FloatArray = best * SLACK
        return result

    def in_flight_floors(self, grid: Grid, options: Sequence[int]) -> list[dict[int, float]]:
        """For a grid of one plan, by stage: the floor with at most so many micro-batches in flight there."""
        last = self._last(grid)
        parts = _Round(self, grid, last)
        full, end, before = parts.full, parts.last, parts.full_before
        floors: list[dict[int, float]] = []
        for stage, group in enumerate(grid.arrangement):
            of_stage = dict.fromkeys(options, 0.0)
            for d in range(len(group)):
                if last.shares[stage][0, d] == 0:
                    continue
                forward, backward = full.forward[stage][d].item(), full.backward[stage][d].item()
                there_and_back = full.there_and_back[stage][d].item()
                way = full.arrive[stage][d].item()
                way += end.there_and_back[stage][d].item() + end.out[stage][d].item()
                for limit in options:
                    computing = before * forward + max(0, before + 1 - limit) * backward
                    waiting = before // limit * there_and_back
                    of_stage[limit] = max(of_stage[limit], (way + max(computing, waiting)) * SLACK)
            floors.append(of_stage)
        return floors

    def paths(self, grid: Grid) -> Paths:
        """Ways of one micro-batch through the pipeline, alone in it."""
        stages = len(grid.arrangement)
        forward, backward = self._compute(grid)
        latency = self._latency
        arrive: list[list[FloatArray]] = [[np.zeros(1) for _ in grid.arrangement[0]]]
        for stage in range(1, stages):
            ways = self._links(grid, stage)
            arrive.append(
                [
                    _longest(
                        (there, arrive[stage - 1][s] + forward[stage - 1][s] + seconds + latency)
                        for s, (there, seconds, _) in enumerate(column)
                    )
                    for column in zip(*ways, strict=True)
                ]
            )
        there_and_back: list[list[FloatArray]] = [[] for _ in range(stages)]
        for stage in reversed(range(stages)):
            ways = self._links(grid, stage + 1) if stage + 1 < stages else []
            for s in range(len(grid.arrangement[stage])):
                behind: FloatArray = np.zeros(1)
                if ways:
                    behind = _longest(
                        (there, out + there_and_back[stage + 1][d] + back + 2 * latency)
                        for d, (there, out, back) in enumerate(ways[s])
                    )
                there_and_back[stage].append(forward[stage][s] + behind + backward[stage][s])
        out: list[list[FloatArray]] = [self._last_step(grid)]
        for stage in range(1, stages):
            ways = self._links(grid, stage)
            out.append(
                [
                    _longest(
                        (there, back + latency + backward[stage - 1][s] + out[stage - 1][s])
                        for s, (there, _, back) in enumerate(column)
                    )
                    for column in zip(*ways, strict=True)
                ]
            )
        return Paths(forward, backward, arrive, there_and_back, out)

    def _last(self, grid: Grid) -> Grid:
        """The grid of the last micro-batch; where a least batch decides who takes part in a rest, the last full one."""
        if self.instance.model.largest_least_batch > 1:
            return grid
        return grid.of_last(self.instance.training.mini_batch, self.instance.device_names)

    # --- parts --------------------------------------------------------------------------------------------------

    def _compute(self, grid: Grid) -> tuple[list[list[FloatArray]], list[list[FloatArray]]]:
        """Seconds of forward and backward of a micro-batch of each stage's replicas, over the grid."""
        forward, backward = [], []
        for stage, group in enumerate(grid.arrangement):
            first, end = grid.cuts[:, stage], grid.cuts[:, stage + 1]
            of_stage: tuple[list[FloatArray], list[FloatArray]] = ([], [])
            for replica, place in enumerate(group):
                shares = grid.shares[stage][:, replica]
                kind = self.instance.devices[place].profile
                overheads = self.instance.profiles[kind].overheads
                # Each may have idled before it.
                action = overheads.action_seconds - overheads.burst_seconds
                for table, to in zip(self._table(kind), of_stage, strict=True):
                    seconds = np.maximum(0.0, table[shares][:, end] - table[shares][:, first] + action)  # [N, C]
                    to.append(_over_grid(grid, stage, seconds.T))
            forward.append(of_stage[0])
            backward.append(of_stage[1])
        return forward, backward

    def _table(self, kind: str) -> tuple[FloatArray, FloatArray]:
        """[samples, layer_count + 1], seconds of the layers before each cut."""
        if kind not in self._tables:
            self._tables[kind] = self.instance.profiles[kind].seconds_table(self.instance.training.mini_batch)
        return self._tables[kind]

    def _links(self, grid: Grid, stage: int) -> list[list[tuple[npt.NDArray[np.bool_], FloatArray, FloatArray]]]:
        """[sender][receiver] between a stage and the one before: who exchanges frames, seconds there and back, over the grid."""
        senders, receivers = grid.arrangement[stage - 1], grid.arrangement[stage]
        model, cuts = self.instance.model, grid.cuts[:, stage]
        overlap = _overlaps(grid.shares[stage - 1], grid.shares[stage])
        ways = []
        for s, sender in enumerate(senders):
            row = []
            for d, receiver in enumerate(receivers):
                samples = overlap[:, :, s, d]
                there, back = (
                    _between_stages(grid, stage, of_cuts[cuts].astype(np.float64)[:, np.newaxis, np.newaxis] * samples)
                    for of_cuts in (model.cut_bytes, model.answered_bytes)
                )
                exchange = _between_stages(grid, stage, (samples > 0)[np.newaxis])
                row.append((exchange, there / self._matrix[sender, receiver], back / self._matrix[receiver, sender]))
            ways.append(row)
        return ways

    def step_seconds(self, grid: Grid, stage: int) -> list[FloatArray]:
        """Seconds of each replica's optimizer step, over the grid."""
        steps = []
        for place in grid.arrangement[stage]:
            profile = self.instance.profiles[self.instance.devices[place].profile]
            before = np.concatenate([np.zeros(1), np.cumsum(profile.update_seconds or np.zeros(profile.layer_count))])
            seconds = before[grid.cuts[:, stage + 1]] - before[grid.cuts[:, stage]] + profile.overheads.round_seconds
            steps.append(_over_grid(grid, stage, seconds[:, np.newaxis]))
        return steps

    def _last_step(self, grid: Grid) -> list[FloatArray]:
        """From the end of a first stage's last backward to the end of a step there: that of the group's quickest."""
        steps = self.step_seconds(grid, 0)
        quickest = steps[0]
        for step in steps[1:]:
            quickest = np.minimum(quickest, step)
        group = len(steps)
        statistics = 0.0 if group == 1 else exchange_steps(group) * self._latency
        return [quickest + statistics for _ in steps]

    def all_reduce_seconds(self, grid: Grid, stage: int) -> FloatArray:
        """Seconds of a stage's all-reduce over the grid, all links its own; 0 for one device."""
        group = grid.arrangement[stage]
        size = len(group)
        if size == 1:
            return np.zeros(1)
        gradients = self.instance.model.gradient_bytes_of_runs(grid.cuts[:, stage], grid.cuts[:, stage + 1])
        # Whoever owns the chunks: the group's cards send them 2 (G-1) times together.
        sent = gradients * 2 * (size - 1)
        # The last bucket and what comes behind it may be under way at once: one latency.
        seconds = sent / sum(self._egress[place] for place in group) + exchange_steps(size) * self._latency
        return _over_grid(grid, stage, seconds[:, np.newaxis])

    def _bounds(self, parts: _Round) -> Iterator[FloatArray]:
        """Everything that a round takes at least as long as, over the grid.

        In each the full micro-batches before the last one count, and the last one with what it has.
        """
        grid, full, last, before = parts.grid, parts.full, parts.last, parts.full_before
        yield np.array(self._source_seconds())
        for stage, group in enumerate(grid.arrangement):
            steps = self.step_seconds(grid, stage)
            reduce = self.all_reduce_seconds(grid, stage)
            for d in range(len(group)):
                forward, backward = full.forward[stage][d], full.backward[stage][d]
                arrive, there = full.arrive[stage][d], parts.present[stage][d]
                work = before * (forward + backward)
                to_last = work + last.forward[stage][d]  # the last backward's begin
                round_trip = before * forward + last.there_and_back[stage][d]
                yield arrive + work + full.out[stage][d]
                yield np.where(there, arrive + to_last + last.backward[stage][d] + last.out[stage][d], 0.0)
                yield np.where(there, arrive + round_trip + last.out[stage][d], 0.0)
                if len(group) == 1:
                    continue
                if stage == 0:
                    to_last = np.maximum(to_last, round_trip - last.backward[stage][d])
                    own_end = last.out[0][d] - exchange_steps(len(group)) * self._latency
                    yield np.where(there, to_last + reduce + own_end, 0.0)
                else:
                    yield np.where(there, to_last + reduce + steps[d], 0.0)
            if stage:
                yield from self._link_bounds(parts, stage)

    def _link_bounds(self, parts: _Round, stage: int) -> Iterator[FloatArray]:
        """Links and cards between a stage and the one before it, each direction apart."""
        full, last, before = parts.full, parts.last, parts.full_before
        ways, last_ways = self._links(parts.grid, stage), self._links(parts.last_grid, stage)
        senders, receivers = parts.grid.arrangement[stage - 1], parts.grid.arrangement[stage]
        done = [a + f for a, f in zip(full.arrive[stage - 1], full.forward[stage - 1], strict=True)]
        first_back = [a + r for a, r in zip(full.arrive[stage], full.there_and_back[stage], strict=True)]
        ends, back_ends = self._ends(full, stage)
        last_ends, last_back_ends = self._ends(last, stage)
        for s in range(len(senders)):
            for d in range(len(receivers)):
                used, there, back = ways[s][d]
                yield np.where(used, done[s] + before * there + ends[d], 0.0)
                yield np.where(used, first_back[d] + before * back + back_ends[s], 0.0)
                still_used, last_there, last_back = last_ways[s][d]
                yield np.where(still_used, done[s] + before * there + last_there + last_ends[d], 0.0)
                yield np.where(still_used, first_back[d] + before * back + last_back + last_back_ends[s], 0.0)
        soonest_end = _least([*ends, *last_ends])
        soonest_back_end = _least([*back_ends, *last_back_ends])
        if len(receivers) > 1:
            for s, sender in enumerate(senders):
                rates = [self._matrix[sender, receiver] / self._egress[sender] for receiver in receivers]
                total = sum((before * ways[s][d][1] + last_ways[s][d][1]) * rate for d, rate in enumerate(rates))
                yield done[s] + total + soonest_end
                rates = [self._matrix[receiver, sender] / self._ingress[sender] for receiver in receivers]
                total = sum((before * ways[s][d][2] + last_ways[s][d][2]) * rate for d, rate in enumerate(rates))
                yield _least(first_back) + total + soonest_back_end
        if len(senders) > 1:
            for d, receiver in enumerate(receivers):
                rates = [self._matrix[sender, receiver] / self._ingress[receiver] for sender in senders]
                total = sum((before * ways[s][d][1] + last_ways[s][d][1]) * rate for s, rate in enumerate(rates))
                yield _least(done) + total + soonest_end
                rates = [self._matrix[receiver, sender] / self._egress[receiver] for sender in senders]
                total = sum((before * ways[s][d][2] + last_ways[s][d][2]) * rate for s, rate in enumerate(rates))
                yield first_back[d] + total + soonest_back_end

    def _ends(self, paths: Paths, stage: int) -> tuple[list[FloatArray], list[FloatArray]]:
        """From the last byte of a frame to the round's end: to each receiver, and on the way back to each sender."""
        ends = [self._latency + r + o for r, o in zip(paths.there_and_back[stage], paths.out[stage], strict=True)]
        back = zip(paths.backward[stage - 1], paths.out[stage - 1], strict=True)
        return ends, [self._latency + b + o for b, o in back]

    def _source_seconds(self) -> float:
        """What the samples of a round take the data source's own card at the least; devices on its machine may get them all, and
        a replica alone fetches each once.
        """
        source, instance = self.instance.data_source, self.instance
        if source is None or any(source.on_its_machine):
            return 0.0
        apart = instance.served_bytes(is_first=True, is_last=False) + instance.served_bytes(
            is_first=False, is_last=True
        )
        per_sample = min(apart, instance.served_bytes(is_first=True, is_last=True))
        return instance.training.mini_batch * per_sample * source.fetched(1.0) / source.egress


class _Round:
    """A round of a grid's plans: so many full micro-batches, then the last one, which may be smaller.

    present: of each stage's replicas, over the grid, whether they have samples in the last one.
    """

    def __init__(self, floor: RoundFloor, grid: Grid, last_grid: Grid) -> None:
        self.grid = grid
        self.last_grid = last_grid
        whole = floor.instance.training.mini_batch // grid.micro_batch
        self.full_before = whole - 1 if last_grid is grid else whole
        self.full = floor.paths(grid)
        self.last = self.full if last_grid is grid else floor.paths(last_grid)
        self.present = [
            [_over_grid(grid, stage, (rows > 0)[np.newaxis, :, d]) for d in range(rows.shape[1])]
            for stage, rows in enumerate(last_grid.shares)
        ]


def _overlaps(senders: IntArray, receivers: IntArray) -> IntArray:
    """[N senders' shares, N receivers', sender, receiver]: samples that they have in common."""
    ends_s, ends_r = np.cumsum(senders, axis=1), np.cumsum(receivers, axis=1)
    starts_s, starts_r = ends_s - senders, ends_r - receivers
    end = np.minimum(ends_s[:, np.newaxis, :, np.newaxis], ends_r[np.newaxis, :, np.newaxis, :])
    start = np.maximum(starts_s[:, np.newaxis, :, np.newaxis], starts_r[np.newaxis, :, np.newaxis, :])
    result: IntArray = np.maximum(end - start, 0)
    return result


def _over_grid(grid: Grid, stage: int, values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[C, N of the stage, or 1] as an array that broadcasts over the grid."""
    shape = [1] * len(grid.shape)
    shape[0], shape[stage + 1] = values.shape
    return values.reshape(shape)


def _between_stages(grid: Grid, stage: int, values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[C or 1, N of the stage before, N of the stage] as an array that broadcasts over the grid."""
    shape = [1] * len(grid.shape)
    shape[0], shape[stage], shape[stage + 1] = values.shape
    return values.reshape(shape)


def _longest(ways: Iterable[tuple[npt.NDArray[np.bool_], FloatArray]]) -> FloatArray:
    """The longest of (is it there, seconds); every replica has one."""
    best: FloatArray = np.full(1, -np.inf)
    for there, seconds in ways:
        best = np.maximum(best, np.where(there, seconds, -np.inf))
    return best


def _least(values: Sequence[FloatArray]) -> FloatArray:
    """The smallest; minus infinity stands for a replica without samples."""
    best: FloatArray = np.full(1, np.inf)
    for value in values:
        best = np.minimum(best, np.where(np.isneginf(value), np.inf, value))
    return best
