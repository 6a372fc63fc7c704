"""How a group shares the samples of a micro-batch so that its slowest replica is as fast as can be.

A replica's time for y samples is the longest of what it computes, what its card carries, and what a data source takes to
serve them. All of these rise with y, so the answer is found exactly: the smallest time t by which the replicas together can
do all samples, each as many as fit into t and into its memory.

    samples done by t    device a  =====|          ====|
                         device b  ===|            ===|
                         device c  =|              =|
                                   0          t    sum = micro_batch

Where that leaves a replica fewer samples than its layers need at once, Asteroid's Algorithm 1 shares them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray

from ..allocation import Group, share_samples
from .candidate import CandidateStage
from .problem import SearchProblem


class _Shared(NamedTuple):
    """used: places in the group of the devices that have samples. shares: theirs."""

    used: tuple[int, ...]
    shares: tuple[int, ...]
    in_flight: int


class SampleSharing:
    """Shares samples for the stages of one problem, and remembers what it has worked out."""

    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self._known: dict[tuple[object, ...], _Shared | None] = {}
        # However many are in flight, as long as memory holds as many samples of each.
        self._by_largest: dict[tuple[object, ...], tuple[int, ...] | None] = {}
        forward, backward = problem.seconds
        self._both = forward + backward
        # [classes, layer_count + 1, mini_batch + 1]: of a run of layers all batch sizes side by side.
        self._by_size = np.ascontiguousarray(self._both.transpose(0, 2, 1))

    def stage(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, in_flight: int
    ) -> CandidateStage | None:
        """The stage with its samples shared; devices that get none are left out, and K is lowered until memory holds.

        None where the group cannot hold it whatever K is.
        """
        kinds = self.problem.kinds
        key = (first, end, tuple([kinds[device] for device in devices]), micro_batch, in_flight)
        if key not in self._known:
            alike = self.problem.alike.representative(first, end)
            of_alike = (*alike, *key[2:])
            if of_alike not in self._known:
                self._known[of_alike] = self._share(*alike, devices, micro_batch, in_flight)
            self._known[key] = self._known[of_alike]
        found = self._known[key]
        if found is None:
            return None
        used = devices if len(found.used) == len(devices) else tuple([devices[place] for place in found.used])
        return CandidateStage(first, end, used, found.shares, found.in_flight)

    def _share(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, in_flight: int
    ) -> _Shared | None:
        for held in range(in_flight, 0, -1):
            held_by = (
                self.problem.largest_share(device, (first, end), in_flight=held, micro_batch=micro_batch)
                for device in devices
            )
            largest = [min(micro_batch, most) for most in held_by]
            if sum(largest) < micro_batch:
                continue
            shares = self._with_largest(first, end, devices, micro_batch, largest)
            if shares is not None:
                used = tuple(place for place, share in enumerate(shares) if share > 0)
                return _Shared(used, tuple(shares[place] for place in used), held)
        return None

    def _with_largest(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, largest: list[int]
    ) -> tuple[int, ...] | None:
        """Shares in the order of the devices, none above its largest; None where layers need more samples than one would have."""
        kinds = self.problem.kinds
        key = (first, end, tuple([kinds[device] for device in devices]), micro_batch, *largest)
        if key not in self._by_largest:
            self._by_largest[key] = self._work_out_shares(first, end, devices, micro_batch, largest)
        return self._by_largest[key]

    def _work_out_shares(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, largest: list[int]
    ) -> tuple[int, ...] | None:
        least = self._least_batch(first, end)
        if len(devices) == 1:
            return (micro_batch,) if micro_batch >= least else None
        times = self._times(first, end, devices, micro_batch)
        shares: tuple[int, ...] = tuple(shares_by_time(times, np.array(largest), micro_batch).tolist())
        if any(0 < share < least for share in shares):
            return self._respecting_least(first, end, devices, micro_batch, largest)
        return shares

    def _least_batch(self, first: int, end: int) -> int:
        return self.problem.instance.model.least_batch(first, end) if self.problem.least_batch > 1 else 1

    def _times(self, first: int, end: int, devices: tuple[int, ...], micro_batch: int) -> FloatArray:
        """[devices, micro_batch + 1]: seconds of a replica for so many samples, rising."""
        problem = self.problem
        classes = [problem.class_of[device] for device in devices]
        table = self._by_size[:, end, : micro_batch + 1] - self._by_size[:, first, : micro_batch + 1]
        # A curve may fall where measurements are noisy: what counts is by when so many samples, or more, are done.
        compute = np.maximum.accumulate(table, axis=1)[classes]
        card = np.array([
            carried_bytes(problem, first, end, replicas=len(devices), at_source=problem.at_source[device])
            / min(problem.card_out[device], problem.card_in[device])
            for device in devices
        ])  # fmt: skip
        if first == 0:
            card = np.maximum(card, problem.served_seconds(devices))
        result: FloatArray = np.maximum(compute, card[:, np.newaxis] * np.arange(micro_batch + 1))
        return result

    def _respecting_least(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, largest: list[int]
    ) -> tuple[int, ...] | None:
        """By Asteroid's Algorithm 1, which knows of least batches."""
        group = Group(
            self._both[:, : micro_batch + 1],
            np.array([self.problem.class_of[device] for device in devices]),
            np.array([first]),
            np.array([end]),
            np.array([largest]),
            np.array([self._least_batch(first, end)]),
        )
        shares = share_samples(group)[0]
        return tuple(int(share) for share in shares) if shares.sum() == micro_batch else None


def carried_bytes(problem: SearchProblem, first: int, end: int, *, replicas: int, at_source: bool) -> float:
    """Bytes of one sample that the card of a stage's replica sends, or receives if these are more, for one micro-batch.

    Forward in and backward out at its first cut, forward out and backward in at its last; of the model's own input only
    where a data source sends it, and that comes in beside the gradients from behind. replicas: of the stage. at_source: the data
    source is on the replica's machine.
    """
    is_last = end == problem.layer_count
    sent = problem.answered_bytes[first] + (0.0 if is_last else problem.cut_bytes[end])
    served = 0.0 if at_source else problem.served_bytes(replicas)
    before = problem.cut_bytes[first] if first else served
    return max(sent, before + (0.0 if is_last else problem.answered_bytes[end]))


def shares_by_time(times: FloatArray, largest: IntArray, samples: int) -> IntArray:
    """[devices] shares that add up to `samples`, the slowest time as small as can be. times: [devices, samples + 1], rising."""
    size = len(times)
    allowed = np.where(np.arange(samples + 1)[np.newaxis, :] <= largest[:, np.newaxis], times, np.inf)
    # By any time as many samples are done as there are marks up to it: all of them by the mark that has so many before it.
    done = np.partition(allowed[:, 1:], samples - 1, axis=None)[samples - 1]
    counts: IntArray = (allowed[:, 1:] <= done).sum(axis=1)
    every = np.arange(size)
    while counts.sum() > samples:
        # What is too much goes from the replica that is busy longest; of equals from the last.
        busy = np.where(counts > 0, allowed[every, counts], -np.inf)
        counts[size - 1 - int(np.argmax(busy[::-1]))] -= 1
    return counts
