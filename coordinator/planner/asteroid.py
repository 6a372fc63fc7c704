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
from dataclasses import dataclass

import numpy as np

from edgeswarm.profile import FloatArray, IntArray, PlanningInstance

from .stage_tables import StageCosts, StageTables

KEPT_PER_STATE = 4


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
    """A group as head stage: its costs, its first device in the order, rows of layers that count, K."""

    costs: StageCosts
    first_device: int
    rows: int
    in_flight: int

    @property
    def seconds(self) -> FloatArray:
        return self.costs.seconds[: self.rows]


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
        count = tables.layer_count
        costs = tables.costs(tables.device_count - devices, tables.device_count, 1)
        execution = np.full((1, count + 1), np.inf)
        execution[0, :count] = tables.micro_batches * costs.seconds[:, count]
        extra = np.full((1, count + 1), np.inf)
        extra[0, :count] = np.where(np.isfinite(execution[0, :count]), costs.all_reduce_seconds[:, count], np.inf)
        to_end = np.full((1, count + 1), np.inf)
        to_end[0, :count] = costs.seconds[:, count]
        none = np.zeros((1, count + 1), dtype=np.int64)
        cut = np.full((1, count + 1), count, dtype=np.int64)
        start, end = self._intervals(
            none, cut, {0: _Head(costs, tables.device_count - devices, count, tables.in_flight(1))}
        )
        return _State(execution, extra, to_end, none, none, cut, start, end)

    def _prepend(self, devices: int, stages: int) -> _State:
        """A head stage of some devices before every shorter pipeline of the rest; the best few for each layer."""
        tables = self.tables
        first_device = tables.device_count - devices
        # The first group of all starts at layer 0: no other row is ever asked for.
        rows = 1 if first_device == 0 else tables.layer_count
        executions, extras, ways, origins = [], [], [], []
        heads: dict[int, _Head] = {}
        least_tail = stages - 1 if self.replicate else devices - 1
        for tail_devices in range(least_tail, devices):
            costs = tables.costs(first_device, tables.device_count - tail_devices, stages)
            head = heads[tail_devices] = _Head(costs, first_device, rows, tables.in_flight(stages))
            tail = self.state(tail_devices, stages - 1)
            for kept in range(len(tail.execution)):
                execution, extra, to_end = self._joined(head, tail, kept)
                ways.append(to_end)
                executions.append(execution)
                extras.append(extra)
                origins.append((tail_devices, kept))
        execution = np.concatenate(executions, axis=1)
        extra = np.concatenate(extras, axis=1)
        execution[execution + extra > self.slowest_round] = np.inf
        return self._keep(execution, extra, np.concatenate(ways, axis=1), np.array(origins, dtype=np.int64), heads)

    def _joined(self, head: _Head, tail: _State, kept: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """V', R' and the way to the end of every head [i, j) before a kept tail of each j: [rows, layer_count + 1]."""
        rounds = self.tables.micro_batches
        seconds = head.seconds
        forward_link, backward_link = self._link(head, tail, kept)
        link = forward_link + backward_link
        to_end = seconds + link + tail.to_end[kept]
        period = seconds if self.tables.most_in_flight is None else np.maximum(seconds, to_end / head.in_flight)
        execution = np.maximum(
            np.maximum(rounds * period, seconds + rounds * link), seconds + link + tail.execution[kept]
        )
        backward = head.costs.backward_seconds[: head.rows]
        with np.errstate(invalid="ignore"):  # infinity less infinity, where there is no pipeline anyway
            behind = tail.extra[kept] - backward - backward_link
        extra = np.maximum(head.costs.all_reduce_seconds[: head.rows], behind)
        return execution, np.where(np.isfinite(execution), extra, np.inf), to_end

    def _link(self, head: _Head, tail: _State, kept: int) -> tuple[FloatArray, FloatArray]:
        """Seconds of a micro-batch over the cut j, forward and backward: [.., layer_count + 1]."""
        tables = self.tables
        sent = tables.instance.model.cut_bytes.astype(np.float64) * tables.micro_batch
        latency = tables.instance.network.latency_seconds
        if tables.uniform_bandwidth is not None:
            seconds = sent / tables.uniform_bandwidth + latency
            return seconds, seconds
        row = head.costs.row[: head.rows]
        forward = np.full(row.shape, np.inf)
        backward = np.full(row.shape, np.inf)
        group = head.costs.shares.shape[1]
        if not len(head.costs.shares):
            return forward, backward
        ends = np.cumsum(head.costs.shares, axis=1)
        starts = ends - head.costs.shares
        for sender in range(group):
            for receiver in range(head.first_device + group, tables.device_count):
                start = np.maximum(starts[row, sender], tail.start[kept, :, receiver])
                overlap = start < np.minimum(ends[row, sender], tail.end[kept, :, receiver])
                there = tables.bandwidth[head.first_device + sender, receiver]
                back = tables.bandwidth[receiver, head.first_device + sender]
                forward = np.where(overlap, np.minimum(forward, there), forward)
                backward = np.where(overlap, np.minimum(backward, back), backward)
        return sent / forward + latency, sent / backward + latency

    def _keep(
        self,
        execution: FloatArray,
        extra: FloatArray,
        to_end: FloatArray,
        origins: IntArray,
        heads: dict[int, _Head],
    ) -> _State:
        """From candidates [rows, origins * (layer_count + 1)] the best few of each row, by falling R and rising V."""
        count = self.tables.layer_count
        rows = len(execution)
        every = np.arange(rows)
        below = np.full(rows, np.inf)
        chosen: list[IntArray] = []
        open_execution = execution
        for level in range(self.kept):
            # The last place goes to the best sum of what is left, so that the paper's own choice is never lost.
            score = open_execution + extra if level == self.kept - 1 else open_execution
            best = score.min(axis=1, keepdims=True)
            picked = np.argmin(np.where(score <= best * (1 + 1e-12), extra, np.inf), axis=1)
            if level and not np.any(np.isfinite(best)):
                break
            chosen.append(picked)
            below = np.minimum(below, extra[every, picked])
            open_execution = np.where(extra < below[:, np.newaxis] * (1 - 1e-12), open_execution, np.inf)
        picks = np.array(chosen)
        shape = (len(picks), count + 1)
        values = np.full(shape, np.inf)
        extras = np.full(shape, np.inf)
        values[:, :rows] = execution[every, picks]
        # A row with fewer than the others ends with a repetition of nothing: mark what was picked twice as absent.
        for level in range(1, len(picks)):
            repeated = ~(extra[every, picks[level]] < extra[every, picks[level - 1]])
            values[level, :rows][repeated] = np.inf
        extras[:, :rows] = np.where(np.isfinite(values[:, :rows]), extra[every, picks], np.inf)
        ways = np.full(shape, np.inf)
        ways[:, :rows] = to_end[every, picks]
        origin = origins[picks // (count + 1)]
        tail_devices, tail_kept, cut = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        tail_devices[:, :rows] = origin[:, :, 0]
        tail_kept[:, :rows] = origin[:, :, 1]
        cut[:, :rows] = picks % (count + 1)
        start, end = self._intervals(tail_devices, cut, heads)
        return _State(values, extras, ways, tail_devices, tail_kept, cut, start, end)

    def _intervals(self, tail_devices: IntArray, cut: IntArray, heads: dict[int, _Head]) -> tuple[IntArray, IntArray]:
        """Sample intervals of the head's replicas, by device of the order; empty arrays where links are all alike."""
        if self.tables.uniform_bandwidth is not None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        start = np.zeros((*cut.shape, self.tables.device_count), dtype=np.int64)
        end = np.zeros_like(start)
        count = self.tables.layer_count
        for tail, head in heads.items():
            costs, first_device = head.costs, head.first_device
            for kept in range(len(cut)):
                layers = np.flatnonzero(tail_devices[kept, :count] == tail)
                row = costs.row[layers, cut[kept, layers]]
                layers, row = layers[row >= 0], row[row >= 0]
                ends = np.cumsum(costs.shares[row], axis=1)
                group = slice(first_device, first_device + costs.shares.shape[1])
                end[kept, layers, group] = ends
                start[kept, layers, group] = ends - costs.shares[row]
        return start, end

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
