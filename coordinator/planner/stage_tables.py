"""The cost of every possible stage: each run of layers on each group of devices, its samples shared by Algorithm 1.

Asteroid's dynamic program asks for the same stages over and over; here all runs of layers of one group are worked out
in one vectorised call, and groups that look alike (the same classes and memory in the same order) share the result. Only
the runs that a group can hold are kept, and only those looked at behind which a pipeline can follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import PlanningInstance

from .allocation import BoolArray, Group, StageTimes, share_samples
from .cost_model import in_flight_limit
from .passing_memory import passing_of_runs


@dataclass(frozen=True)
class StageCosts:
    """One group's costs as a stage over layers [first[r], end[r]): arrays [R] of the stages that it can hold, in order.

    seconds: forward and backward of one micro-batch. shares: [R, G] samples by device.
    """

    layer_count: int
    first: IntArray
    end: IntArray
    seconds: FloatArray
    backward_seconds: FloatArray
    all_reduce_seconds: FloatArray
    shares: IntArray

    def seconds_of(self, first_layer: int, end_layer: int) -> float:
        """Of one stage; infinite where the group cannot hold it."""
        row = self._row(first_layer, end_layer)
        return math.inf if row is None else float(self.seconds[row])

    def shares_of(self, first_layer: int, end_layer: int) -> tuple[int, ...]:
        row = self._row(first_layer, end_layer)
        assert row is not None, "asked for the shares of a stage that the group cannot hold"
        return tuple(int(share) for share in self.shares[row])

    def _row(self, first_layer: int, end_layer: int) -> int | None:
        wanted = first_layer * (self.layer_count + 1) + end_layer
        row = int(np.searchsorted(self._keys, wanted))
        return row if row < len(self._keys) and self._keys[row] == wanted else None

    @cached_property
    def _keys(self) -> IntArray:
        """[R], rising."""
        keys: IntArray = self.first * (self.layer_count + 1) + self.end
        return keys


@dataclass(frozen=True)
class _Shared:
    """The part of the costs that depends on the devices alone, not on links: arrays [R] of the stages that fit."""

    first: IntArray
    end: IntArray
    shares: IntArray
    forward: FloatArray
    backward: FloatArray


class StageTables:
    """Costs of all stages of one instance at one micro-batch size, for devices in a fixed order.

    order: places of the devices in the instance. slowest_round: stages that alone take longer than this many seconds in
    a round are left out. most_in_flight: a limit on K below K_p; None for K_p itself.
    """

    def __init__(
        self,
        instance: PlanningInstance,
        order: list[int],
        *,
        micro_batch: int,
        slowest_round: float = math.inf,
        most_in_flight: int | None = None,
    ) -> None:
        self.instance = instance
        self.order = order
        self.micro_batch = micro_batch
        self.micro_batches = -(-instance.training.mini_batch // micro_batch)
        self.bandwidth = instance.network.matrix[np.ix_(order, order)]
        self.uniform_bandwidth = _only_value(self.bandwidth)
        self.most_in_flight = most_in_flight
        self._slowest_stage = slowest_round / self.micro_batches
        devices = [instance.devices[place] for place in order]
        classes = sorted({device.profile for device in devices})
        self._kinds = np.array([classes.index(device.profile) for device in devices])
        self._budgets = np.array([device.memory_bytes - device.base_bytes for device in devices], dtype=np.float64)
        self._times = StageTimes.of([instance.profiles[kind] for kind in classes], micro_batch)
        self._seconds = self._times.forward + self._times.backward
        self._least = _least_batch(instance)
        self._every = np.ones(self.layer_count + 1, dtype=np.bool_)
        self._shared: dict[tuple[object, ...], _Shared] = {}

    @property
    def layer_count(self) -> int:
        return self.instance.model.layer_count

    @property
    def device_count(self) -> int:
        return len(self.order)

    def in_flight(self, stages_to_end: int) -> int:
        """K of the stage that many from the end."""
        return in_flight_limit(stages_to_end=stages_to_end, micro_batches=self.micro_batches, most=self.most_in_flight)

    def costs(
        self, first_device: int, end_device: int, stages_to_end: int, *, ends: BoolArray | None = None
    ) -> StageCosts:
        """Costs of the group of devices [first_device, end_device) of the order, as the stage that many from the end.

        Only of the runs of layers that it can have: the first group's start at 0, the last stage's end at the end, and
        all of them where `ends` [layer_count + 1] is true.
        """
        in_flight = self.in_flight(stages_to_end)
        head, tail = first_device == 0, stages_to_end == 1
        devices = slice(first_device, end_device)
        wanted = self._every if ends is None else ends
        key = (tuple(self._kinds[devices]), tuple(self._budgets[devices]), in_flight, head, tail, wanted.tobytes())
        if key not in self._shared:
            self._shared[key] = self._share(devices, in_flight, head=head, tail=tail, ends=wanted)
        shared = self._shared[key]
        return StageCosts(
            self.layer_count,
            shared.first,
            shared.end,
            seconds=shared.forward + shared.backward,
            backward_seconds=shared.backward,
            all_reduce_seconds=self._all_reduce(shared, devices),
            shares=shared.shares,
        )

    def _share(self, devices: slice, in_flight: int, *, head: bool, tail: bool, ends: BoolArray) -> _Shared:
        kinds = self._kinds[devices]
        first, end = self._layer_runs(kinds, head=head, tail=tail, wanted=ends)
        model = self.instance.model
        weights = self.instance.resident_bytes_of_runs(first, end)
        passing = passing_of_runs(self.instance, first, end)
        saved = model.saved_bytes_before[end] - model.saved_bytes_from[first]
        per_sample = passing.waiting_per_sample(saved, in_flight=in_flight, micro_batches=self.micro_batches)
        free = self._budgets[devices][:, np.newaxis] - weights[np.newaxis, :]
        largest = passing.most_samples(free, per_sample, limit=self.micro_batch).T.astype(np.int64)
        fits = largest.sum(axis=1) >= self.micro_batch
        first, end, largest = first[fits], end[fits], largest[fits]
        group = Group(self._seconds, kinds, first, end, largest, self._least[first, end])
        shares = share_samples(group)
        held = shares.sum(axis=1) == self.micro_batch
        first, end, shares = first[held], end[held], shares[held]
        return _Shared(
            first,
            end,
            shares,
            forward=_slowest(self._times.forward, kinds, shares, first, end),
            backward=_slowest(self._times.backward, kinds, shares, first, end),
        )

    def _layer_runs(self, kinds: IntArray, *, head: bool, tail: bool, wanted: BoolArray) -> tuple[IntArray, IntArray]:
        """The runs of layers [first, end) worth a look: those that end where wanted, from layer 0, or to the last layer."""
        count = self.layer_count
        first = np.zeros(1, dtype=np.int64) if head else np.arange(count)
        end = np.full(1, count, dtype=np.int64) if tail else np.flatnonzero(wanted)
        firsts, ends = (grid.ravel() for grid in np.meshgrid(first, end, indexing="ij"))
        # One replica at least takes micro_batch/G samples or more: what that costs bounds the stage from below.
        part = -(-self.micro_batch // len(kinds))
        before = self._seconds[np.unique(kinds), part:]
        layers = np.diff(before, axis=2).min(axis=(0, 1))
        bound = np.concatenate([np.zeros(1), np.cumsum(layers)])
        keep = (firsts < ends) & (bound[ends] - bound[firsts] <= self._slowest_stage * (1 + 1e-9))
        return firsts[keep], ends[keep]

    def _all_reduce(self, shared: _Shared, devices: slice) -> FloatArray:
        """[R]: the ring's seconds over the replicas that take samples (Eq 5)."""
        gradients = self.instance.model.gradient_bytes_of_runs(shared.first, shared.end)
        busy = shared.shares > 0
        size = np.maximum(busy.sum(axis=1), 1)
        slowest = np.full(len(gradients), np.inf)
        links = self.bandwidth[devices, devices]
        for a in range(links.shape[0]):
            for b in range(links.shape[1]):
                if a != b:
                    slowest = np.where(busy[:, a] & busy[:, b], np.minimum(slowest, links[a, b]), slowest)
        seconds = 2 * (size - 1) * (gradients / size / slowest + self.instance.network.latency_seconds)
        return np.where(gradients > 0, seconds, 0.0)


def _slowest(table: FloatArray, kinds: IntArray, shares: IntArray, first: IntArray, end: IntArray) -> FloatArray:
    """[R]: seconds of the slowest replica (Eq 8) by a table [classes, B + 1, layer_count + 1]."""
    kind = kinds[np.newaxis, :]
    seconds = table[kind, shares, end[:, np.newaxis]] - table[kind, shares, first[:, np.newaxis]]
    return np.asarray(seconds.max(axis=1), dtype=np.float64)


def _least_batch(instance: PlanningInstance) -> IntArray:
    """[layer_count, layer_count + 1]: the largest least batch among layers [i, j)."""
    least = np.array(instance.model.least_batches)
    count = len(least)
    table = np.ones((count, count + 1), dtype=np.int64)
    for first in range(count):
        table[first, first + 1 :] = np.maximum.accumulate(least[first:])
    return table


def _only_value(bandwidth: FloatArray) -> float | None:
    """The bandwidth of every link where they are all alike, else None; infinite for one device."""
    links = np.unique(bandwidth[np.isfinite(bandwidth)])
    if len(links) == 0:
        return math.inf
    return float(links[0]) if len(links) == 1 else None
