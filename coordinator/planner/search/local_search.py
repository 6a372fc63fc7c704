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

# Work of naming a candidate's neighbours, in the budget's unit.
_OPENING = 150.0

# Candidates whose neighbours are estimated together.
_AT_ONCE = 8


class LocalSearch:
    """Searches around candidates of one problem. estimates: seconds of all that was estimated."""

    def __init__(self, moves: Moves, estimator: PipelineEstimator, judge: Judge) -> None:
        self.moves = moves
        self.estimator = estimator
        self.judge = judge
        self.estimates: dict[Candidate, float] = {}
        self._opened: set[Candidate] = set()
        # The least ratio of simulated to estimated seconds: by pattern, and by its groups' sizes alone.
        self._beyond: dict[object, float] = {}
        self._shapes: dict[Candidate, tuple[object, tuple[int, tuple[int, ...]]]] = {}

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
                self.open(front[begin : begin + _AT_ONCE])

    def open(self, candidates: Iterable[Candidate]) -> None:
        """Estimates all their neighbours, at once: that costs much less than one after another."""
        fresh = [candidate for candidate in candidates if candidate not in self._opened]
        self._opened.update(fresh)
        self.judge.budget -= _OPENING * len(fresh)
        self.estimate([neighbour for candidate in fresh for neighbour in self._neighbours(candidate)])

    def _neighbours(self, candidate: Candidate) -> list[Candidate]:
        return [*self.moves.coarse(candidate), *self.moves.fine(candidate)]

    def best(
        self, count: int, *, of_each_size: int = 0, of_each_shape: int = 1, unknown: bool = False
    ) -> list[Candidate]:
        """The best of what was seen, few of each shape: of the same groups in the same order, and one size.

        By the simulator's seconds where they are known, else by estimate times what the simulator found others of the
        same pattern to take beyond theirs, or of its groups' sizes at other micro-batch sizes. unknown: just those that
        aren't simulated yet; the others count in their shapes.
        """
        found: list[Candidate] = []
        of_shape: dict[object, int] = {}
        of_size: dict[int, int] = {}
        for candidate in sorted(self.estimates, key=self._expected):
            shape, size = self._shape(candidate), candidate.micro_batch
            if of_shape.get(shape, 0) < of_each_shape and (len(found) < count or of_size.get(size, 0) < of_each_size):
                of_shape[shape] = of_shape.get(shape, 0) + 1
                if unknown and self.judge.knows(candidate):
                    continue
                found.append(candidate)
                of_size[size] = of_size.get(size, 0) + 1
        return found

    def _expected(self, candidate: Candidate) -> float:
        if self.judge.knows(candidate):
            return self.judge.seconds(candidate)
        pattern = self._pattern(candidate)
        return self.estimates[candidate] * self._beyond.get(pattern, self._beyond.get(pattern[1], 1.0))

    def simulate(self, candidate: Candidate) -> float:
        """Its seconds by the simulator."""
        known = self.judge.knows(candidate)
        seconds = self.judge.seconds(candidate)
        estimate = self.estimates.get(candidate, 0.0)
        if not known and estimate > 0 and math.isfinite(seconds):
            pattern = self._pattern(candidate)
            for key in (pattern, pattern[1]):
                self._beyond[key] = min(seconds / estimate, self._beyond.get(key, math.inf))
        return seconds

    def climb(self, start: Candidate, *, patience: int, floor: float = 0.0) -> tuple[Candidate, float]:
        """The best that small changes lead to, and its seconds; where nothing better is found or affordable, `start`.

        patience: neighbours that are simulated, the best by estimate first, before it gives up. floor: of the budget, at
        which it takes no further step.
        """
        best, seconds = start, self.simulate(start)
        open_kinds: list[Callable[[Candidate], list[Candidate]]] = [self.moves.coarse, self.moves.fine]
        while open_kinds:
            self.judge.budget -= _OPENING / 2
            found = self._step(seconds, open_kinds[0](best), patience, floor)
            if found is None:
                open_kinds.pop(0)
            else:
                best, seconds = found
        return best, seconds

    def _step(
        self, seconds: float, neighbours: list[Candidate], patience: int, floor: float
    ) -> tuple[Candidate, float] | None:
        """The first faster neighbour, in the order of the estimates."""
        if self.judge.budget <= floor:
            return None
        tried = 0
        for candidate in self.estimate(neighbours):
            if not self.judge.affords(candidate):
                continue
            # What is known already costs nothing, and no patience.
            tried += not self.judge.knows(candidate)
            if tried > patience:
                break
            now = self.simulate(candidate)
            if now < seconds * (1 - _LEAST_GAIN):
                return candidate, now
        return None

    def estimate(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """These, the fastest by estimate first; the work of estimating new ones is taken from the budget."""
        candidates = list(dict.fromkeys(candidates))
        new = [candidate for candidate in candidates if candidate not in self.estimates]
        if new:
            rounds = [min(20, candidate.micro_batches(self.judge.problem.mini_batch)) for candidate in new]
            longest = max((len(candidate.stages) + 1) / 2 * count for candidate, count in zip(new, rounds, strict=True))
            self.judge.budget -= 2 * longest * (14 + len(new) / 12) + 12 * len(new)
            self.estimates.update(zip(new, self.estimator.estimate(new).tolist(), strict=True))
        order = np.argsort([self.estimates[candidate] for candidate in candidates], kind="stable")
        return [candidates[place] for place in order if math.isfinite(self.estimates[candidates[place]])]

    def _shape(self, candidate: Candidate) -> object:
        """Of the same groups in the same order, and one size."""
        return self._shape_and_pattern(candidate)[0]

    def _pattern(self, candidate: Candidate) -> tuple[int, tuple[int, ...]]:
        """Candidates of one pattern err alike when they are estimated: one micro-batch size, groups of the same sizes."""
        return self._shape_and_pattern(candidate)[1]

    def _shape_and_pattern(self, candidate: Candidate) -> tuple[object, tuple[int, tuple[int, ...]]]:
        if candidate not in self._shapes:
            kinds = self.judge.problem.kinds
            groups = tuple(tuple(sorted(kinds[device] for device in stage.devices)) for stage in candidate.stages)
            size = candidate.micro_batch
            self._shapes[candidate] = (size, groups), (size, tuple(map(len, groups)))
        return self._shapes[candidate]
