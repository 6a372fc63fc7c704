"""How a group shares the samples of a micro-batch so that its slowest replica is as fast as can be.

A replica's time for y samples is the longer of what it computes and what its card carries. Both rise with y, so the
answer is found exactly: the smallest time t by which the replicas together can do all samples, each as many as fit
into t and into its memory.

    samples done by t    device a  =====|          ====|
                         device b  ===|            ===|
                         device c  =|              =|
                                   0          t    sum = micro_batch
"""

from __future__ import annotations

import numpy as np

from edgeswarm.profile import FloatArray, IntArray

from ..allocation import Group, share_samples
from .candidate import CandidateStage
from .problem import SearchProblem


class SampleSharing:
    """Shares samples for the stages of one problem, and remembers what it has worked out."""

    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self._known: dict[tuple[object, ...], tuple[tuple[int, ...], int] | None] = {}
        forward, backward = problem.seconds
        # A curve may fall where measurements are noisy: what counts is by when so many samples, or more, are done.
        self._both = forward + backward

    def stage(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, in_flight: int
    ) -> CandidateStage | None:
        """The stage with its samples shared; devices that get none are left out, and K is lowered until memory holds.

        None where the group cannot hold it whatever K is.
        """
        kinds = tuple(self.problem.kinds[device] for device in devices)
        key = (first, end, kinds, micro_batch, in_flight)
        if key not in self._known:
            self._known[key] = self._share(first, end, devices, micro_batch, in_flight)
        found = self._known[key]
        if found is None:
            return None
        shares, held = found
        used = [place for place, share in enumerate(shares) if share > 0]
        return CandidateStage(
            first, end, tuple(devices[place] for place in used), tuple(shares[place] for place in used), held
        )

    def _share(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, in_flight: int
    ) -> tuple[tuple[int, ...], int] | None:
        micro_batches = self.problem.micro_batches(micro_batch)
        for held in range(in_flight, 0, -1):
            held_by = (
                self.problem.largest_share(device, (first, end), in_flight=held, micro_batches=micro_batches)
                for device in devices
            )
            largest = [min(micro_batch, most) for most in held_by]
            if sum(largest) < micro_batch:
                continue
            shares = self._with_largest(first, end, devices, micro_batch, largest)
            if shares is not None:
                return shares, held
        return None

    def _with_largest(
        self, first: int, end: int, devices: tuple[int, ...], micro_batch: int, largest: list[int]
    ) -> tuple[int, ...] | None:
        if self.problem.least_batch > 1:
            return self._respecting_least(first, end, devices, micro_batch, largest)
        if len(devices) == 1:
            return (micro_batch,)
        times = self._times(first, end, devices, micro_batch)
        counts = shares_by_time(times, np.array(largest), micro_batch)
        return tuple(int(count) for count in counts)

    def _times(self, first: int, end: int, devices: tuple[int, ...], micro_batch: int) -> FloatArray:
        """[devices, micro_batch + 1]: seconds of a replica for so many samples, rising."""
        problem = self.problem
        classes = [problem.class_of[device] for device in devices]
        table = self._both[:, : micro_batch + 1, end] - self._both[:, : micro_batch + 1, first]
        compute = np.maximum.accumulate(table, axis=1)[classes]
        carried = carried_bytes(problem, first, end)
        card = np.array([carried / min(problem.card_out[device], problem.card_in[device]) for device in devices])
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
            np.array([self.problem.instance.model.least_batch(first, end)]),
        )
        shares = share_samples(group)[0]
        return tuple(int(share) for share in shares) if shares.sum() == micro_batch else None


def carried_bytes(problem: SearchProblem, first: int, end: int) -> float:
    """Bytes of one sample that the card of a stage's replica sends, and receives, for one micro-batch.

    Forward in and backward out at its first cut, forward out and backward in at its last; of the model's own input only
    where a data source sends it, and that comes in beside the gradients from behind.
    """
    behind = problem.cut_bytes[end] if end < problem.layer_count else 0.0
    return behind + (problem.cut_bytes[first] if first else problem.served_input_bytes)


def shares_by_time(times: FloatArray, largest: IntArray, samples: int) -> IntArray:
    """[devices] shares that add up to `samples`, the slowest time as small as can be. times: [devices, samples + 1], rising."""
    size = len(times)
    allowed = np.where(np.arange(samples + 1)[np.newaxis, :] <= largest[:, np.newaxis], times, np.inf)
    marks = np.unique(allowed[:, 1:])
    low, high = 0, len(marks) - 1
    while low < high:
        middle = (low + high) // 2
        if (allowed[:, 1:] <= marks[middle]).sum() >= samples:
            high = middle
        else:
            low = middle + 1
    counts: IntArray = (allowed[:, 1:] <= marks[low]).sum(axis=1)
    every = np.arange(size)
    while counts.sum() > samples:
        # What is too much goes from the replica that is busy longest; of equals from the last.
        busy = np.where(counts > 0, allowed[every, counts], -np.inf)
        counts[size - 1 - int(np.argmax(busy[::-1]))] -= 1
    return counts
