"""From good plans to better ones by small changes: many steps by estimate alone, then some with the simulator.

beam     the best few of different shape -> all their neighbours, estimated at once -> the best few -> ...
climb    the best by simulation -> its neighbours in order of their estimates -> the first that simulates faster -> ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .candidate import Candidate
from .judge import Judge
from .moves import Moves
from .pipeline_estimate import PipelineEstimator

# A change has to bring this much: below it the simulator's last digits decide.
_LEAST_GAIN = 1e-6

# Candidates whose neighbours are estimated together.
_AT_ONCE = 4


class LocalSearch:
    """Searches around candidates of one problem. estimates: seconds of all that was estimated."""

    def __init__(self, moves: Moves, estimator: PipelineEstimator, judge: Judge) -> None:
        self.moves = moves
        self.estimator = estimator
        self.judge = judge
        self.estimates: dict[Candidate, float] = {}
        self._opened: set[Candidate] = set()

    def beam(
        self,
        starts: Iterable[Candidate],
        *,
        width: int,
        steps: int,
        floor: float,
        of_each_size: int = 0,
        of_each_shape: int = 1,
    ) -> None:
        """Goes from the best of different shape to their neighbours, so many steps; `estimates` has all that was seen.

        floor: of the budget, at which it stops. of_each_size: how many of each micro-batch size are among the best,
        however slow. of_each_shape: at most.
        """
        self.estimate(list(starts))
        for _ in range(steps):
            best = self.best(width, of_each_size=of_each_size, of_each_shape=of_each_shape)
            front = [candidate for candidate in best if candidate not in self._opened]
            if not front:
                return
            for begin in range(0, len(front), _AT_ONCE):
                if self.judge.budget <= floor:
                    return
                part = front[begin : begin + _AT_ONCE]
                self._opened.update(part)
                self.estimate([neighbour for candidate in part for neighbour in self._neighbours(candidate)])

    def _neighbours(self, candidate: Candidate) -> list[Candidate]:
        return [*self.moves.coarse(candidate), *self.moves.fine(candidate)]

    def best(self, count: int, *, of_each_size: int = 0, of_each_shape: int = 1) -> list[Candidate]:
        """The best by estimate of what was seen, few of each shape: of the same groups in the same order, and one size."""
        found: list[Candidate] = []
        of_shape: dict[object, int] = {}
        of_size: dict[int, int] = {}
        for candidate in sorted(self.estimates, key=self.estimates.__getitem__):
            shape, size = self._shape(candidate), candidate.micro_batch
            if of_shape.get(shape, 0) < of_each_shape and (len(found) < count or of_size.get(size, 0) < of_each_size):
                found.append(candidate)
                of_shape[shape] = of_shape.get(shape, 0) + 1
                of_size[size] = of_size.get(size, 0) + 1
        return found

    def climb(self, start: Candidate, *, patience: int) -> tuple[Candidate, float]:
        """The best that small changes lead to, and its seconds; where nothing better is found or affordable, `start`.

        patience: neighbours that are simulated, the best by estimate first, before it gives up.
        """
        best, seconds = start, self.judge.seconds(start)
        open_kinds: list[Callable[[Candidate], list[Candidate]]] = [self.moves.coarse, self.moves.fine]
        while open_kinds:
            found = self._step(seconds, open_kinds[0](best), patience)
            if found is None:
                open_kinds.pop(0)
            else:
                best, seconds = found
        return best, seconds

    def _step(self, seconds: float, neighbours: list[Candidate], patience: int) -> tuple[Candidate, float] | None:
        """The first faster neighbour, in the order of the estimates."""
        if self.judge.budget <= 0:
            return None
        tried = 0
        for candidate in self.estimate(neighbours):
            if not self.judge.affords(candidate):
                continue
            # What is known already costs nothing, and no patience.
            tried += not self.judge.knows(candidate)
            if tried > patience:
                break
            now = self.judge.seconds(candidate)
            if now < seconds * (1 - _LEAST_GAIN):
                return candidate, now
        return None

    def estimate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """These, the fastest by estimate first; the work of estimating new ones is taken from the budget."""
        candidates = list(dict.fromkeys(candidates))
        new = [candidate for candidate in candidates if candidate not in self.estimates]
        if new:
            rounds = [min(20, candidate.micro_batches(self.judge.problem.mini_batch)) for candidate in new]
            longest = max(len(candidate.stages) * count for candidate, count in zip(new, rounds, strict=True))
            self.judge.budget -= 2 * longest * (14 + len(new) / 12) + 12 * len(new)
            self.estimates.update(zip(new, self.estimator.estimate(new).tolist(), strict=True))
        order = np.argsort([self.estimates[candidate] for candidate in candidates], kind="stable")
        return [candidates[place] for place in order if math.isfinite(self.estimates[candidates[place]])]

    def _shape(self, candidate: Candidate) -> object:
        kinds = self.judge.problem.kinds
        groups = tuple(tuple(sorted(kinds[device] for device in stage.devices)) for stage in candidate.stages)
        return candidate.micro_batch, groups
