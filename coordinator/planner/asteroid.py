"""Asteroid's Algorithm 2: the dynamic program over layers, devices and stages.

Q(i, n, q) is the best pipeline of the layers from i to the end on the last n devices in q stages, devices in descending
order of memory. A new head stage and the link behind it go before a shorter pipeline:

    layers   i . . . . . . j . . . . . . . . . . L
             [ head stage ]-link-[  Q(j, n', q-1)  ]
    devices   n - n' of them      the last n'

The round of a pipeline (Eq 4 to 6, 11) is V + R, where
  V = max over steps c of M x_c + sum of x_i for i < c      (the dominant step's execution, seen from the first step),
  R = max over steps s of T_a(s) - sum of b_i for i < s     (what the all-reduces add to it),
for T_w(s) + T_e(s) = V - sum of b_i for i < s. Both follow from the tail's values when steps go before it:
  V' = max(M x_head, x_head + M x_link, x_head + x_link + V)
  R' = max(T_a(head), R - b_head - b_link)
The smallest V + R of a tail need not lead to the smallest of the whole, so a state keeps its best few (V, R), none of
which is worse than another in both. With one kept per state this is the paper's rule.

Where K is held below K_p, M x_head becomes M times the head's period (see cost_model): at least the way to the end and
back over K. Such a pipeline is looked for only where none with K_p fits memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import PlanningInstance

from .allocation import BoolArray
from .stage_tables import StageCosts, StageTables

KEPT_PER_STATE = 4
# Where a pipeline can follow behind most cuts, groups that look alike share their costs rather than leave some out each.
FEW_ENDS = 0.75


@dataclass(frozen=True)
class FoundStage:
    """A stage of a found pipeline: layers [first_layer, end_layer), samples by device in group order, 0 allowed."""

    first_layer: int
    end_layer: int
    shares: tuple[tuple[str, int], ...]
    in_flight: int


@dataclass(frozen=True)
class FoundPipeline:
    """What a search found at one micro-batch size; seconds of a round by the cost model."""

    micro_batch: int
    round_seconds: float
    stages: tuple[FoundStage, ...]


@dataclass(frozen=True)
class _Head:
    """A group as head stage: its costs, its first device in the order, how many are behind it, K."""

    costs: StageCosts
    first_device: int
    tail_devices: int
    in_flight: int


@dataclass(frozen=True)
class _Candidates:
    """Pipelines of a head stage and a kept tail: arrays [C], by rising first layer of the head.

    head: which of the heads; run: which of its stages. tail_kept: which of the tail's. The other names are those of _State.
    """

    first: IntArray
    execution: FloatArray
    extra: FloatArray
    to_end: FloatArray
    head: IntArray
    run: IntArray
    tail_kept: IntArray

    def take(self, rows: IntArray | BoolArray) -> _Candidates:
        return _Candidates(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def together(cls, parts: list[_Candidates]) -> _Candidates:
        """Those of equal first layers stay in the order of the parts."""
        joined = cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))
        return joined.take(np.argsort(joined.first, kind="stable"))


@dataclass(frozen=True)
class _State:
    """Q(., n, q) for every first layer: arrays [kept, layer_count + 1], `execution` infinite where there is none.

    execution: V. extra: R. to_end: sum of x, the way of one micro-batch to the end and back.
    tail_devices, tail_kept, cut: n', which of the tail's kept ones, j.
    start, end: [kept, layer_count + 1, devices] sample intervals of the head stage's replicas; empty arrays where links
    are all alike, since then it does not matter who sends to whom.
    """

    execution: FloatArray
    extra: FloatArray
    to_end: FloatArray
    tail_devices: IntArray
    tail_kept: IntArray
    cut: IntArray
    start: IntArray
    end: IntArray


def memory_order(instance: PlanningInstance) -> list[int]:
    """Places of the devices in descending order of memory; of equals the faster first, then by name."""
    batch = instance.training.mini_batch
    layers = (0, instance.model.layer_count)

    def rank(place: int) -> tuple[float, float, str]:
        device = instance.devices[place]
        profile = instance.profiles[device.profile]
        seconds = profile.forward(batch, *layers) + profile.backward(batch, *layers)
        return (device.base_bytes - device.memory_bytes, seconds, device.name)

    return sorted(range(len(instance.devices)), key=rank)


def search(
    instance: PlanningInstance,
    *,
    micro_batch: int,
    slowest_round: float = math.inf,
    most_stages: int | None = None,
    replicate: bool = True,
    most_in_flight: int | None = None,
    kept: int = KEPT_PER_STATE,
) -> FoundPipeline | None:
    """The best pipeline at one micro-batch size; None where none fits memory or `slowest_round` seconds.

    most_stages: at most so many. replicate: False gives every device a stage of its own, the last ones none where there
    are fewer layers than devices. most_in_flight: hold K below K_p. kept: how many (V, R) a state keeps.
    """
    order = memory_order(instance)
    if not replicate:
        order = order[: instance.model.layer_count]
    tables = StageTables(
        instance, order, micro_batch=micro_batch, slowest_round=slowest_round, most_in_flight=most_in_flight
    )
    program = _Program(tables, slowest_round=slowest_round, replicate=replicate, kept=kept)
    most = min(len(order), instance.model.layer_count, most_stages or len(order))
    return program.best(range(1, most + 1) if replicate else range(len(order), len(order) + 1))


class _Program:
    """The table of states, filled on demand."""

    def __init__(self, tables: StageTables, *, slowest_round: float, replicate: bool, kept: int) -> None:
        self.tables = tables
        self.slowest_round = slowest_round * (1 + 1e-9)
        self.replicate = replicate
        self.kept = kept
        self.states: dict[tuple[int, int], _State] = {}

    def best(self, stage_counts: range) -> FoundPipeline | None:
        """The best over the given numbers of stages, all layers on all devices."""
        found: tuple[float, int, int] | None = None
        for count in stage_counts:
            state = self.state(self.tables.device_count, count)
            totals = state.execution[:, 0] + state.extra[:, 0]
            kept = int(np.argmin(totals))
            better = found is None or totals[kept] < found[0]
            if better and totals[kept] <= self.slowest_round and math.isfinite(totals[kept]):
                found = (float(totals[kept]), count, kept)
        if found is None:
            return None
        return FoundPipeline(self.tables.micro_batch, found[0], self._stages(found[1], found[2]))

    def state(self, devices: int, stages: int) -> _State:
        """Q(., devices, stages)."""
        key = (devices, stages)
        if key not in self.states:
            self.states[key] = self._last_stage(devices) if stages == 1 else self._prepend(devices, stages)
        return self.states[key]

    def _last_stage(self, devices: int) -> _State:
        """One stage that holds all the layers from i on."""
        tables = self.tables
        first_device = tables.device_count - devices
        costs = tables.costs(first_device, tables.device_count, 1)
        run = np.arange(len(costs.first))
        none = np.zeros_like(run)
        alone = _Candidates(
            costs.first,
            execution=tables.micro_batches * costs.seconds,
            extra=costs.all_reduce_seconds,
            to_end=costs.seconds,
            head=none,
            run=run,
            tail_kept=none,
        )
        return self._filled(alone, [run], [_Head(costs, first_device, 0, tables.in_flight(1))])

    def _prepend(self, devices: int, stages: int) -> _State:
        """A head stage of some devices before every shorter pipeline of the rest; the best few for each layer."""
        tables = self.tables
        first_device = tables.device_count - devices
        heads: list[_Head] = []
        found: list[_Candidates] = []
        least_tail = stages - 1 if self.replicate else devices - 1
        for tail_devices in range(least_tail, devices):
            tail = self.state(tail_devices, stages - 1)
            # What is kept second is worse than the first: where that is none, there is nothing.
            ends = np.isfinite(tail.execution[0])
            if not ends.any():
                continue
            few = ends if ends.sum() < FEW_ENDS * len(ends) else None
            costs = tables.costs(first_device, tables.device_count - tail_devices, stages, ends=few)
            head = _Head(costs, first_device, tail_devices, tables.in_flight(stages))
            found += [self._joined(head, len(heads), tail, kept) for kept in range(len(tail.execution))]
            heads.append(head)
        if not any(len(part.first) for part in found):
            return self._filled(None, [], heads)
        candidates = _Candidates.together(found)
        return self._filled(candidates, _best_few(candidates, self.kept), heads)

    def _joined(self, head: _Head, number: int, tail: _State, kept: int) -> _Candidates:
        """V', R' and the way to the end of every head [i, j) before a kept tail of each j, within `slowest_round`."""
        rounds = self.tables.micro_batches
        costs = head.costs
        run = np.flatnonzero(np.isfinite(tail.execution[kept, costs.end]))
        cut, seconds = costs.end[run], costs.seconds[run]
        forward_link, backward_link = self._link(head, tail, kept, run)
        link = forward_link + backward_link
        to_end = seconds + link + tail.to_end[kept, cut]
        period = seconds if self.tables.most_in_flight is None else np.maximum(seconds, to_end / head.in_flight)
        execution = np.maximum(
            np.maximum(rounds * period, seconds + rounds * link), seconds + link + tail.execution[kept, cut]
        )
        behind = tail.extra[kept, cut] - costs.backward_seconds[run] - backward_link
        extra = np.maximum(costs.all_reduce_seconds[run], behind)
        which = np.full(len(run), number, dtype=np.int64)
        found = _Candidates(costs.first[run], execution, extra, to_end, which, run, np.full_like(run, kept))
        quick: BoolArray = execution + extra <= self.slowest_round
        return found if quick.all() else found.take(quick)

    def _link(self, head: _Head, tail: _State, kept: int, run: IntArray) -> tuple[FloatArray, FloatArray]:
        """Seconds of a micro-batch over the cut behind these stages of a head, forward and backward: [runs]."""
        tables = self.tables
        cut = head.costs.end[run]
        sent = tables.instance.model.cut_bytes[cut].astype(np.float64) * tables.micro_batch
        answered = tables.instance.model.answered_bytes[cut].astype(np.float64) * tables.micro_batch
        latency = tables.instance.network.latency_seconds
        if tables.uniform_bandwidth is not None:
            return sent / tables.uniform_bandwidth + latency, answered / tables.uniform_bandwidth + latency
        forward = np.full(len(run), np.inf)
        backward = np.full(len(run), np.inf)
        shares = head.costs.shares[run]
        ends = np.cumsum(shares, axis=1)
        starts = ends - shares
        for sender in range(shares.shape[1]):
            for receiver in range(head.first_device + shares.shape[1], tables.device_count):
                start = np.maximum(starts[:, sender], tail.start[kept, cut, receiver])
                overlap = start < np.minimum(ends[:, sender], tail.end[kept, cut, receiver])
                there = tables.bandwidth[head.first_device + sender, receiver]
                back = tables.bandwidth[receiver, head.first_device + sender]
                forward = np.where(overlap, np.minimum(forward, there), forward)
                backward = np.where(overlap, np.minimum(backward, back), backward)
        return sent / forward + latency, answered / backward + latency

    def _filled(self, candidates: _Candidates | None, picks: list[IntArray], heads: list[_Head]) -> _State:
        """The state of the candidates that were picked, by level: at most one of each first layer."""
        shape = (max(1, len(picks)), self.tables.layer_count + 1)
        execution, extra, to_end = (np.full(shape, np.inf) for _ in range(3))
        tail_devices, tail_kept, cut = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        links_differ = self.tables.uniform_bandwidth is None
        start, end = np.zeros((2, *shape, self.tables.device_count if links_differ else 0), dtype=np.int64)
        for level, rows in enumerate(picks):
            assert candidates is not None
            picked = candidates.take(rows)
            execution[level, picked.first] = picked.execution
            extra[level, picked.first] = picked.extra
            to_end[level, picked.first] = picked.to_end
            tail_kept[level, picked.first] = picked.tail_kept
            for number, head in enumerate(heads):
                of_head = picked.head == number
                first, run = picked.first[of_head], picked.run[of_head]
                tail_devices[level, first] = head.tail_devices
                cut[level, first] = head.costs.end[run]
                if links_differ:
                    shares = head.costs.shares[run]
                    ends = np.cumsum(shares, axis=1)
                    group = slice(head.first_device, head.first_device + shares.shape[1])
                    end[level, first, group] = ends
                    start[level, first, group] = ends - shares
        return _State(execution, extra, to_end, tail_devices, tail_kept, cut, start, end)

    def _stages(self, stages: int, kept: int) -> tuple[FoundStage, ...]:
        """Walk back from the first layer through what each state kept."""
        tables = self.tables
        found = []
        first_layer, devices = 0, tables.device_count
        for left in range(stages, 0, -1):
            state = self.state(devices, left)
            cut = int(state.cut[kept, first_layer])
            tail_devices = int(state.tail_devices[kept, first_layer])
            first_device, end_device = tables.device_count - devices, tables.device_count - tail_devices
            shares = tables.costs(first_device, end_device, left).shares_of(first_layer, cut)
            names = [tables.instance.devices[place].name for place in tables.order[first_device:end_device]]
            group = tuple(zip(names, shares, strict=True))
            found.append(FoundStage(first_layer, cut, group, tables.in_flight(left)))
            kept = int(state.tail_kept[kept, first_layer])
            first_layer, devices = cut, tail_devices
        return tuple(found)


def _best_few(candidates: _Candidates, most: int) -> list[IntArray]:
    """Of each first layer the best few candidates, by falling R and rising V: which ones, level by level."""
    starts = np.flatnonzero(np.diff(candidates.first, prepend=-1))
    layer = (
        np.cumsum(np.diff(candidates.first, prepend=-1) > 0) - 1
    )  # of each candidate, which of the starts is its own
    extra = candidates.extra
    left = candidates.execution
    below = np.full(len(starts), np.inf)
    chosen: list[IntArray] = []
    for level in range(most):
        # The last place goes to the best sum of what is left, so that the paper's own choice is never lost.
        score = left + extra if level == most - 1 else left
        best = np.minimum.reduceat(score, starts)
        among = np.where(score <= best[layer] * (1 + 1e-12), extra, np.inf)
        least = np.minimum.reduceat(among, starts)
        ties = np.flatnonzero(among == least[layer])
        picked = ties[np.flatnonzero(np.diff(layer[ties], prepend=-1))]
        # Where nothing is left, what was picked before comes again, or what is no better.
        new = np.isfinite(best) & (extra[picked] < below)
        if not new.any():
            break
        chosen.append(picked[new])
        below = np.minimum(below, extra[picked])
        left = np.where(extra < below[layer] * (1 - 1e-12), left, np.inf)
    return chosen
