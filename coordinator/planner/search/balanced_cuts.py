"""Where to cut the model for given groups in a given order, so that the first stage computes all the time, and little.

Then a round takes its M micro-batches one after the other. A stage behind it, which gets the first of them later and has to be
done with the last of them earlier, must take less for each, and still less where links take long, too:

    stage 0   | 0 | 1 | 2 | 3 |  0  |  1  |  2  |  3  |      M x_0
    stage 1       |0|1|2|3| 0 | 1 | 2 | 3 |                  x_0 + links + M x_1 <= M x_0

For a time of the first one, each group in turn takes as many layers as that allows; the least time with which the last one comes
to the end is found by halving. That is the least there is where links don't count, and near it where they do. Memory is left to
whoever looks at the plan.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .problem import SearchProblem

# Of the whole model's time on the first group, up to which the least time is found.
_PRECISION = 1e-3


@dataclass(frozen=True)
class _Line:
    """Groups one behind the other. before[group][replica][cut], carried[link][cut]: seconds of a micro-batch."""

    before: Sequence[Sequence[Sequence[float]]]
    carried: Sequence[Sequence[float]]
    micro_batches: int

    def cut_within(self, seconds: float) -> tuple[list[int], bool]:
        """Cuts, where the first group may take so long for a micro-batch, and whether all is done in time with them.

        Each group takes a layer at least, and leaves one for each behind it.
        """
        count, cuts, late, in_time = len(self.before[0][0]) - 1, [0], 0.0, True
        for place, rows in enumerate(self.before):
            first, left = cuts[-1], len(self.before) - place - 1
            if place:
                late += seconds + self.carried[place - 1][first]
            allowed = max(0.0, seconds - late / self.micro_batches)
            end = min(bisect_right(row, row[first] + allowed) - 1 for row in rows)
            in_time = in_time and end > first and (left > 0 or end >= count)
            cuts.append(count if left == 0 else min(max(end, first + 1), count - left))
        return cuts, in_time


class BalancedCuts:
    """Remembers what layers take. speed: of a device, by which a group's samples are shared here."""

    def __init__(self, problem: SearchProblem, *, speed: Callable[[int], float]) -> None:
        self._problem = problem
        self._speed = speed
        self._before: dict[tuple[int, int], list[float]] = {}

    def cuts(self, groups: Sequence[tuple[int, ...]], micro_batch: int) -> tuple[int, ...] | None:
        """[stages + 1]: of stages of one layer at least; None with fewer layers than groups."""
        if self._problem.layer_count < len(groups):
            return None
        line = _Line(
            before=[self._seconds_before(group, micro_batch) for group in groups],
            carried=[self._carried(*pair, micro_batch) for pair in itertools.pairwise(groups)],
            micro_batches=self._problem.micro_batches(micro_batch),
        )
        whole = max(row[-1] for row in line.before[0])
        least, most = 0.0, whole
        while most - least > _PRECISION * whole:
            middle = (least + most) / 2
            if line.cut_within(middle)[1]:
                most = middle
            else:
                least = middle
        return tuple(line.cut_within(most)[0])

    def _carried(self, senders: Sequence[int], receivers: Sequence[int], micro_batch: int) -> list[float]:
        """By cut: seconds of a micro-batch there and back over the slowest link between these groups, shared by the larger."""
        links = self._problem.links
        rate = min(links[a][b] for a in senders for b in receivers) * max(len(senders), len(receivers))
        both = zip(self._problem.cut_bytes, self._problem.answered_bytes, strict=True)
        return [micro_batch * (there + back) / rate for there, back in both]

    def _seconds_before(self, group: tuple[int, ...], micro_batch: int) -> list[list[float]]:
        """By replica: forward and backward of the layers before each cut."""
        whole = sum(map(self._speed, group))
        return [
            self._of(device, min(micro_batch, max(1, round(micro_batch * self._speed(device) / whole))))
            for device in group
        ]

    def _of(self, device: int, samples: int) -> list[float]:
        key = (self._problem.class_of[device], samples)
        if key not in self._before:
            forward, backward = self._problem.seconds
            self._before[key] = (forward[key] + backward[key]).tolist()
        return self._before[key]
