"""What any group of devices takes for any run of layers, at one micro-batch size: all groups and runs at once.

A group is a number of units of each kind (grouping.py), a run of layers lies between two of the candidate cuts. Samples
are shared as in sample_shares.py: for each run the times at which some kind of device has done one more sample are
sorted, and the first is found by which the group together has done them all. Of large micro-batches so are portions of some
samples: that is near enough to choose groups and cuts by.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.gradient_pieces import LEAST_BUCKET_BYTES, bucket_bytes
from edgeswarm.model_costs import FloatArray, IntArray

from ..allocation import BoolArray
from ..passing_memory import passing_of_runs
from .grouping import UnitKind
from .problem import SearchProblem, all_reduce_steps
from .runs import Runs
from .sample_shares import carried_bytes

# Into how many portions a micro-batch is cut here at least, and for each device: like devices have done the next one at once.
_LEAST_PORTIONS, _PORTIONS_OF_A_DEVICE = 64, 8


@dataclass(frozen=True)
class GroupCosts:
    """Costs at one micro-batch size; arrays [groups, runs] over the runs of the tables, infinite where memory is too small.

    seconds[k]: forward and backward of a micro-batch with in_flight[k] of them held, or what the card takes if longer.
    backward: its part that goes backward. end: all-reduce and optimizer's step behind the last backward.
    largest_share[k]: samples of the replica that takes most. worthwhile: [of in_flight, groups] whether this K is
    possible, and lets a group do more than holding more micro-batches would.
    """

    micro_batch: int
    in_flight: tuple[int, ...]
    seconds: FloatArray
    backward: FloatArray
    end: FloatArray
    largest_share: FloatArray
    worthwhile: BoolArray


class GroupCostTables:
    """Makes GroupCosts. groups: [groups, kinds] units of each kind, the empty one first, in mixed-radix order.

    runs: of layers, between two of the cuts.
    """

    def __init__(self, problem: SearchProblem, kinds: Sequence[UnitKind], cuts: list[int]) -> None:
        self.problem = problem
        self.kinds = kinds
        self.cuts = cuts
        ranges = [range(len(kind.units) + 1) for kind in kinds]
        self.groups: IntArray = np.array(list(itertools.product(*ranges)), dtype=np.int64)
        self.sizes: IntArray = self.groups * np.array([kind.unit_size for kind in kinds])
        self._first = [kind.devices[0] for kind in kinds]
        self._memory = [min(problem.memory[device] for device in kind.devices) for kind in kinds]
        self.links = self._links()
        self.runs = Runs(len(cuts))
        # Of runs that are alike one is worked out.
        every = zip(np.array(cuts)[self.runs.first].tolist(), np.array(cuts)[self.runs.end].tolist(), strict=True)
        alike = np.array([problem.alike.representative(first, end) for first, end in every])
        distinct, among = np.unique(alike, axis=0, return_inverse=True)
        self._among_distinct = among.reshape(-1)  # NumPy 2.0 has another shape for it than those before and after
        self._firsts, self._ends = distinct[:, 0], distinct[:, 1]
        self._passing = passing_of_runs(problem.instance, self._firsts, self._ends)

    def _links(self) -> FloatArray:
        """[kinds, kinds]: bytes per second from a device of one kind to one of another; infinite for none."""
        links = np.array(self.problem.links)
        count = len(self.kinds)
        rates = np.full((count, count), np.inf)
        for a, b in itertools.product(range(count), repeat=2):
            values = links[np.ix_(self.kinds[a].devices, self.kinds[b].devices)]
            finite = values[np.isfinite(values)]
            if len(finite):
                rates[a, b] = float(np.median(finite))
        return rates

    def between(self) -> FloatArray:
        """[groups, groups]: the slowest link from a device of one group to one of another."""
        present = self.groups > 0
        rates = np.full((len(self.groups), len(self.groups)), np.inf)
        for a, b in itertools.product(range(len(self.kinds)), repeat=2):
            used = present[:, a][:, np.newaxis] & present[:, b][np.newaxis, :]
            rates = np.where(used, np.minimum(rates, self.links[a, b]), rates)
        return rates

    def costs(self, micro_batch: int, in_flight: tuple[int, ...]) -> GroupCosts:
        count, kinds = len(self._firsts), len(self.kinds)
        portions = min(micro_batch, max(_LEAST_PORTIONS, _PORTIONS_OF_A_DEVICE * self.problem.device_count))
        samples = np.round(np.linspace(0, micro_batch, portions + 1)).astype(np.int64)
        flat = self._kind_times(samples)[:, 1:].reshape(kinds * portions, count)
        order = np.argsort(flat, axis=0, kind="stable")
        marks = np.take_along_axis(flat, order, axis=0)
        done = np.stack([samples[np.cumsum(order // portions == kind, axis=0)] for kind in range(kinds)])
        largest = [self._largest(micro_batch, held) for held in in_flight]
        time, most = self._share(marks, done, micro_batch, largest[0])
        times, shares = [time], [most]
        for before, now in itertools.pairwise(largest):
            # Most runs fit however many are held, and nothing changes for them.
            other = np.flatnonzero((before != now).any(axis=0))
            time, most = time.copy(), most.copy()
            if len(other):
                found = self._share(marks[:, other], done[:, :, other], micro_batch, now[:, other])
                time[:, other], most[:, other] = found
            times.append(time)
            shares.append(most)
        parts = self._backward_part(micro_batch) * np.where(np.isfinite(times[0]), times[0], 0.0)
        worthwhile = np.array([np.isfinite(time).any(axis=1) for time in times])
        for place in range(len(times) - 1):
            worthwhile[place] &= (times[place] != times[place + 1]).any(axis=1)
        return GroupCosts(
            micro_batch,
            in_flight,
            np.array(times)[:, :, self._among_distinct],
            parts[:, self._among_distinct],
            self._end_seconds(parts)[:, self._among_distinct],
            np.array(shares)[:, :, self._among_distinct],
            worthwhile,
        )

    def _kind_times(self, samples: IntArray) -> FloatArray:
        """[kinds, numbers, runs]: seconds of one device of a kind for each of these numbers of samples, rising."""
        problem = self.problem
        forward, backward = problem.seconds
        both = forward[:, samples] + backward[:, samples]
        runs = list(zip(self._firsts.tolist(), self._ends.tolist(), strict=True))
        carried = {
            # How many replicas a stage has isn't known yet.
            at_source: np.array(
                [carried_bytes(problem, first, end, replicas=2, at_source=at_source) for first, end in runs]
            )
            for at_source in {problem.at_source[device] for device in self._first}
        }
        rows = []
        for device in self._first:
            table = both[problem.class_of[device]]
            compute = np.maximum.accumulate(table[:, self._ends] - table[:, self._firsts], axis=0)
            compute[1:] += 2 * problem.profiles[problem.class_of[device]].overheads.action_seconds
            card = carried[problem.at_source[device]] / min(problem.card_out[device], problem.card_in[device])
            rows.append(np.maximum(compute, card[np.newaxis, :] * samples[:, np.newaxis]))
        return np.array(rows)

    def _largest(self, micro_batch: int, held: int) -> FloatArray:
        """[kinds, runs]: samples that a device of the kind can hold."""
        weights = self.problem.instance.resident_bytes_of_runs(self._firsts, self._ends)
        kernels = self.problem.instance.model.kernel_bytes_before
        smaller = self.problem.smaller_micro_batches(micro_batch)
        weights = weights + smaller * (kernels[self._ends] - kernels[self._firsts])
        saved = np.array(self.problem.saved_bytes)[self._ends] - np.array(self.problem.saved_bytes_from)[self._firsts]
        free = np.array(self._memory)[:, np.newaxis] - weights[np.newaxis, :]
        micro_batches = self.problem.micro_batches(micro_batch)
        waiting = self._passing.waiting_per_sample(saved, in_flight=held, micro_batches=micro_batches)
        return self._passing.most_samples(free, waiting, limit=micro_batch)

    def _share(
        self, marks: FloatArray, done: IntArray, micro_batch: int, largest: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """[groups, runs]: the time by which all samples are done, and the largest share then; infinite for never.

        done: [kinds, marks, runs] samples that a device of the kind has done by each mark. largest: of `_largest`.
        """
        every = np.arange(marks.shape[1])
        fitting = [np.minimum(kind, most).ravel() for kind, most in zip(done, largest, strict=True)]
        low = np.zeros((len(self.groups), marks.shape[1]), dtype=np.int64)
        high = np.full_like(low, len(marks) - 1)
        sizes = self.sizes.astype(np.float64)
        while np.any(low < high):
            middle = (low + high) // 2
            enough = _samples_done(fitting, middle * len(every) + every, sizes) >= micro_batch
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        place = low * len(every) + every
        held = _samples_done(fitting, place, sizes) >= micro_batch
        most = np.zeros(low.shape)
        for kind, samples in enumerate(fitting):
            part = np.take(samples, place)
            most = np.maximum(most, np.where(sizes[:, kind, np.newaxis] > 0, part, 0.0))
        return np.where(held, np.take(marks, place), np.inf), np.where(held, np.minimum(most, micro_batch), np.inf)

    def _backward_part(self, micro_batch: int) -> FloatArray:
        """[groups, runs]: what part of a stage's time is backward, by the mean of its kinds."""
        forward, backward = self.problem.seconds
        parts = []
        for device in self._first:
            place = self.problem.class_of[device]
            back = backward[place, micro_batch, self._ends] - backward[place, micro_batch, self._firsts]
            there = forward[place, micro_batch, self._ends] - forward[place, micro_batch, self._firsts]
            parts.append(back / np.maximum(back + there, 1e-300))
        sizes = self.sizes.astype(np.float64)
        result: FloatArray = sizes @ np.array(parts) / np.maximum(sizes.sum(axis=1), 1.0)[:, np.newaxis]
        return result

    def _end_seconds(self, backward: FloatArray) -> FloatArray:
        """[groups, runs]: what the all-reduce takes beyond the last backward, and the optimizer's step."""
        sent = self.problem.instance.model.gradient_bytes_of_runs(self._firsts, self._ends)
        size = np.maximum(self.sizes.sum(axis=1), 1)
        slowest, card = np.full(len(self.groups), np.inf), np.full(len(self.groups), np.inf)
        for a, b in itertools.product(range(len(self.kinds)), repeat=2):
            pair = (self.sizes[:, a] > (1 if a == b else 0)) & (self.sizes[:, b] > 0)
            slowest = np.where(pair, np.minimum(slowest, self.links[a, b]), slowest)
            card = np.where(self.sizes[:, a] > 0, np.minimum(card, self.problem.cards[self._first[a]]), card)
        # All own a chunk of the gradients: of one goes 2 / size over any link, of all of them the rest over each card.
        factor = np.maximum(2.0 * (size - 1) / size / card, np.where(size > 2, 2.0 / size, size - 1.0) / slowest)
        factor = factor[:, np.newaxis]
        latency = (all_reduce_steps(size) * self.problem.latency)[:, np.newaxis]
        before = np.array(self.problem.buckets_before)
        # Bucket after bucket, and one of statistics behind them.
        largest = np.array([bucket_bytes(int(each)) for each in size])[:, np.newaxis]
        buckets = (before[self._ends] - before[self._firsts]) * (LEAST_BUCKET_BYTES / largest)
        whole = factor * sent + latency * (buckets + 1)
        last = np.minimum(np.array(self.problem.last_bucket_bytes)[self._firsts], np.minimum(sent, largest))
        bucket = factor * last + 2 * latency
        updates = np.zeros(whole.shape)
        for kind, device in enumerate(self._first):
            steps = self.problem.update_before[self.problem.class_of[device]]
            step = np.where(self.sizes[:, kind, np.newaxis] > 0, steps[self._ends] - steps[self._firsts], 0.0)
            updates = np.maximum(updates, step)
        result: FloatArray = np.maximum(whole - backward, bucket) + updates
        return result


def _samples_done(done: Sequence[FloatArray], place: IntArray, sizes: FloatArray) -> FloatArray:
    """[groups, runs]: what groups have done of a micro-batch by a mark of each run.

    done: by kind, [marks * runs]. place: of the mark of each group and run in that. sizes: [groups, kinds].
    """
    total = np.zeros(place.shape)
    for kind, samples in enumerate(done):
        total += sizes[:, kind, np.newaxis] * np.take(samples, place)
    return total
