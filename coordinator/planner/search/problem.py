"""An instance as the search sees it: devices in canonical order, and every number it asks for again and again at hand."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from edgeswarm.gradient_pieces import LAST_BUCKET_BYTES, LEAST_BUCKET_BYTES
from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import PlanningInstance

from ..chunk_owners import Replica, card_rate, choose_owners, replicas_of
from ..passing_memory import PassingMemory, passing_table
from .alike_runs import AlikeRuns
from .kinds import canonical_order, interchangeable_kinds


class SearchProblem:
    """instance: the same devices in canonical order. kinds: [devices] which of them are interchangeable."""

    def __init__(self, instance: PlanningInstance) -> None:
        order = canonical_order(instance)
        self.instance = instance.only([instance.devices[place].name for place in order])
        self.kinds = interchangeable_kinds(self.instance)
        model, training = instance.model, instance.training
        self.layer_count = model.layer_count
        self.device_count = len(order)
        self.mini_batch = training.mini_batch
        self.least_batch = model.largest_least_batch
        self.cut_bytes = [float(value) for value in model.cut_bytes]
        self.answered_bytes = [float(value) for value in model.answered_bytes]
        # A single device far away is no reason to think badly of plans without it; the simulator has each pair's.
        self.latency = instance.network.usual_latency_seconds
        self.weight_bytes_before: list[float] = instance.resident_bytes_before.tolist()
        self.kernel_bytes_before: list[int] = model.kernel_bytes_before.tolist()
        self.gradient_bytes_before = [float(value) for value in model.gradient_bytes_before]
        self.statistics_bytes = [0.0, *itertools.accumulate(float(layer.statistics_bytes) for layer in model.layers)]
        self.saved_bytes = [float(value) for value in model.saved_bytes_before]
        self.saved_bytes_from = [float(value) for value in model.saved_bytes_from]
        self.memory = [float(device.memory_bytes - device.base_bytes) for device in self.instance.devices]
        self.links: list[list[float]] = self.instance.network.matrix.tolist()
        classes = sorted({device.profile for device in self.instance.devices})
        self.class_of = [classes.index(device.profile) for device in self.instance.devices]
        self.profiles = [instance.profiles[kind] for kind in classes]
        # Searches ask often.
        self._weight_bytes = functools.cache(self.instance.resident_bytes)
        self._gradient_bytes = functools.cache(lambda first, end: float(model.gradient_bytes(first, end)))
        self._owners: dict[tuple[tuple[int, ...], float], tuple[int, ...]] = {}
        self._replicas: dict[tuple[int, ...], dict[int, Replica]] = {}
        self._largest_shares: dict[tuple[int, ...], int] = {}
        self.alike = AlikeRuns(self.instance)

    def weight_bytes(self, first: int, end: int) -> float:
        """What a device holds all the time for a stage of these layers."""
        if self.instance.model.tied:
            return self._weight_bytes(first, end)
        return self.weight_bytes_before[end] - self.weight_bytes_before[first]

    def gradient_bytes(self, first: int, end: int) -> float:
        """What replicas of such a stage sum up in a round."""
        if self.instance.model.tied:
            return self._gradient_bytes(first, end)
        return self.gradient_bytes_before[end] - self.gradient_bytes_before[first]

    @cached_property
    def members(self) -> list[tuple[int, ...]]:
        """By kind: its devices, ascending."""
        devices = range(self.device_count)
        return [tuple(d for d in devices if self.kinds[d] == kind) for kind in range(max(self.kinds) + 1)]

    @cached_property
    def passing(self) -> PassingMemory:
        """[layer_count + 1, layer_count + 1]: what is held beside weights and saved activations."""
        return passing_table(self.instance)

    @cached_property
    def cards(self) -> list[float]:
        """By device: bytes per second that its card sends to other devices and takes from them at most."""
        return [card_rate(self.links, device) for device in range(self.device_count)]

    @cached_property
    def card_out(self) -> list[float]:
        """By device: bytes per second that its card sends at most, its fastest link (infinite for one device alone)."""
        return [max((rate for rate in row if rate != np.inf), default=np.inf) for row in self.links]

    @cached_property
    def card_in(self) -> list[float]:
        """By device: bytes per second that its card receives at most, what the data source sends it over that included."""
        source = self.instance.data_source
        rates = [[row[place] for row in self.links if row[place] != np.inf] for place in range(self.device_count)]
        if source is not None:
            rates = [
                rate if self.at_source[place] else [*rate, source.bandwidth[place]] for place, rate in enumerate(rates)
            ]
        return [max(rate, default=np.inf) for rate in rates]

    @cached_property
    def at_source(self) -> tuple[bool, ...]:
        """By device: whether its samples come from its own machine, and not over its card."""
        source = self.instance.data_source
        return (False,) * self.device_count if source is None else source.on_its_machine

    def served_bytes(self, replicas: int) -> float:
        """Of a sample's input, what a replica of a first stage of so many fetches, if all take as many samples."""
        source = self.instance.data_source
        return 0.0 if source is None else self.instance.served_input_bytes * source.fetched(1 / replicas)

    def served_seconds(self, devices: Sequence[int]) -> FloatArray:
        """[devices]: in which the data source serves one sample to each of a first stage's; 0 where samples are at hand."""
        source = self.instance.data_source
        if source is None:
            return np.zeros(len(devices))
        served: FloatArray = self.served_bytes(len(devices)) / np.array(source.bandwidth)[list(devices)]
        return served

    @cached_property
    def buckets_before(self) -> list[int]:
        """[layer_count + 1]: about how many buckets of gradients the layers before each cut make, for two replicas.

        A large one counts once: of its pieces two are under way at a time, and the bytes of one hide the latencies of the other.
        """
        counts, held = [0], float(LEAST_BUCKET_BYTES)
        for before, after in zip(self.gradient_bytes_before, self.gradient_bytes_before[1:], strict=False):
            size = after - before
            full = size > 0 and held + size > LEAST_BUCKET_BYTES
            held = size if full else held + size
            counts.append(counts[-1] + full)
        return counts

    @cached_property
    def last_bucket_bytes(self) -> list[float]:
        """[layer_count]: about what the last bucket has of a stage that begins with each layer: what nothing hides.

        Where the first of its layers with gradients is too large for one, the whole layer; a bucket is that large at most.
        """
        found = []
        for first in range(self.layer_count):
            before = self.gradient_bytes_before
            ends = [after - before[first] for after in before[first + 1 :]]
            fitting = [size for size in ends if 0 < size <= LAST_BUCKET_BYTES]
            found.append(float(max(fitting, default=next((size for size in ends if size), 0))))
        return found

    @cached_property
    def seconds(self) -> tuple[FloatArray, FloatArray]:
        """Forward and backward: [classes, mini_batch + 1, layer_count + 1], the seconds of the layers before each cut."""
        tables = [profile.seconds_table(self.mini_batch) for profile in self.profiles]
        return np.array([table[0] for table in tables]), np.array([table[1] for table in tables])

    @cached_property
    def has_weights_apart(self) -> bool:
        """Whether it is known what backwards take where gradients of weights come apart."""
        return any(part > 0 for profile in self.profiles for part in profile.weights_parts)

    @cached_property
    def seconds_apart(self) -> tuple[FloatArray, FloatArray]:
        """Like `seconds`, of backwards where gradients of weights come apart: of the rest, and of these gradients."""
        layers = np.diff(self.seconds[1], axis=2)
        before = np.zeros_like(self.seconds[1]), np.zeros_like(self.seconds[1])
        for sums, parts, otherwise in zip(before, ("rest_parts", "weights_parts"), (1.0, 0.0), strict=True):
            rows = [getattr(profile, parts) or (otherwise,) * self.layer_count for profile in self.profiles]
            np.cumsum(layers * np.array(rows)[:, np.newaxis, :], axis=2, out=sums[:, :, 1:])
        return before

    @cached_property
    def update_before(self) -> FloatArray:
        """[classes, layer_count + 1]: seconds of the optimizer's step over the layers before each cut."""
        rows = np.zeros((len(self.profiles), self.layer_count + 1))
        for place, profile in enumerate(self.profiles):
            if profile.update_seconds:
                rows[place, 1:] = np.cumsum(profile.update_seconds)
        return rows

    def owners(self, first: int, end: int, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Of the chunks of a stage's gradients, on these devices; empty for one or two."""
        if len(devices) < 3:
            return ()
        group = tuple(sorted(devices))
        key = (group, self.gradient_bytes(first, end))
        if key not in self._owners:
            chosen = choose_owners(list(self.replicas(group).values()), key[1])
            self._owners[key] = tuple(group[place] for place in chosen)
        return self._owners[key]

    def replicas(self, group: tuple[int, ...]) -> dict[int, Replica]:
        """By device, of a group of two or more, ascending."""
        if group not in self._replicas:
            self._replicas[group] = dict(zip(group, replicas_of(self.instance, group, cards=self.cards), strict=True))
        return self._replicas[group]

    def micro_batches(self, micro_batch: int) -> int:
        """Of a round, where one has so many samples."""
        return -(-self.mini_batch // micro_batch)

    def smaller_micro_batches(self, micro_batch: int) -> int:
        """How many sizes there are of smaller ones, each of which has kernels of its own: a round's last one, and that of an
        epoch's smaller last round.
        """
        return len({self.mini_batch % micro_batch, self.instance.training.rest % micro_batch} - {0})

    def largest_share(self, device: int, layers: tuple[int, int], *, in_flight: int, micro_batch: int) -> int:
        """Samples of a micro-batch of so many that the device's memory holds, with so many in flight; at most a mini-batch's."""
        key = (self.kinds[device], *layers, in_flight, micro_batch)
        if key not in self._largest_shares:
            alike = self.alike.representative(*layers)
            self._largest_shares[key] = (
                self._work_out_largest_share(device, layers, in_flight, micro_batch)
                if alike == layers
                else self.largest_share(device, alike, in_flight=in_flight, micro_batch=micro_batch)
            )
        return self._largest_shares[key]

    def _work_out_largest_share(self, device: int, layers: tuple[int, int], in_flight: int, micro_batch: int) -> int:
        first, end = layers
        free = self.memory[device] - self.weight_bytes(first, end)
        kernels = self.kernel_bytes_before[end] - self.kernel_bytes_before[first]
        free -= self.smaller_micro_batches(micro_batch) * kernels
        run = (first, end)
        waiting = self.passing.waiting_per_sample_of(
            run,
            self.saved_bytes[end] - self.saved_bytes_from[first],
            in_flight=in_flight,
            micro_batches=self.micro_batches(micro_batch),
        )
        return self.passing.most_samples_of(run, free, waiting, limit=self.mini_batch)


def all_reduce_steps(size: IntArray) -> IntArray:
    """Latencies of one bucket in a group of so many replicas: two exchange, more send it to its owners and get it back."""
    return np.minimum(size - 1, 2)
