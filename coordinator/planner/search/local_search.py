"""From good plans to better ones by small changes: many steps by estimate alone, then some with the simulator.

beam     the best few of different shape -> all their neighbours, estimated at once -> the best few -> ...
climb    the best by simulation -> its neighbours in order of their estimates -> the first that simulates faster -> ...
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .candidate import Candidate
from .effort import MANY_DEVICES
from .judge import Judge
from .moves import Moves
from .pipeline_estimate import PipelineEstimator
from .seen import SeenCandidates

# A change has to bring this much: below it the simulator's last digits decide.
_LEAST_GAIN = 1e-6

# Work of naming a candidate's neighbours, in the budget's unit.
_OPENING = 150.0

# Candidates whose neighbours are estimated together, with up to MANY_DEVICES; with more they have more neighbours each.
_AT_ONCE = 8
# Work of estimating a candidate; of one with more replicas than MANY_DEVICES as much as it has replicas.
_ESTIMATING = 12


class LocalSearch:
    """Searches around candidates of one problem. seen: all that was estimated."""

    def __init__(self, moves: Moves, estimator: PipelineEstimator, judge: Judge) -> None:
        self.moves = moves
        self.estimator = estimator
        self.judge = judge
        self.seen = SeenCandidates(judge.problem.kinds)
        self._opened: set[Candidate] = set()
        self._coarse, self._fine = functools.cache(moves.coarse), functools.cache(moves.fine)
        self._at_once = max(1, _AT_ONCE * MANY_DEVICES // max(MANY_DEVICES, judge.problem.device_count))

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
        """Goes from the best of different shape to their neighbours, so many steps; `seen` has all of them.

        floor: of the budget, at which it stops. of_each_size: how many of each micro-batch size are among the best,
        however slow. of_each_shape: at most.
        """
        self.estimate(list(starts))
        for _ in range(steps):
            best = self.best(width, of_each_size=of_each_size, of_each_shape=of_each_shape)
            front = [candidate for candidate in best if candidate not in self._opened]
            if not front:
                return
            self.open_within(front, floor=floor)
            if self.judge.budget <= floor:
                return

    def open_within(self, candidates: Sequence[Candidate], *, floor: float) -> None:
        """Opens them, some at once, until the budget is down to `floor`."""
        for begin in range(0, len(candidates), self._at_once):
            if self.judge.budget <= floor:
                return
            self.open(candidates[begin : begin + self._at_once])

    def open(self, candidates: Iterable[Candidate]) -> None:
        """Estimates all their neighbours, at once: that costs much less than one after another."""
        fresh = [candidate for candidate in candidates if candidate not in self._opened]
        self._opened.update(fresh)
        self.judge.budget -= _OPENING * len(fresh)
        self.estimate([neighbour for candidate in fresh for neighbour in self._neighbours(candidate)])

    def _neighbours(self, candidate: Candidate) -> list[Candidate]:
        return [*self._coarse(candidate), *self._fine(candidate)]

    def best(
        self, count: int, *, of_each_size: int = 0, of_each_shape: int = 1, unknown: bool = False
    ) -> list[Candidate]:
        """The best of what was seen, few of each shape: of the same groups in the same order, and one size.

        By what they are expected to take (seen.py). unknown: just those that aren't simulated yet; the others count in their
        shapes.
        """
        found: list[Candidate] = []
        of_shape: dict[int, int] = {}
        of_size: dict[int, int] = {}
        for seen in self.seen.by_expectation():
            if len(found) >= count and not of_each_size:
                break
            taken, size = of_shape.get(seen.shape, 0), seen.candidate.micro_batch
            if taken < of_each_shape and (len(found) < count or of_size.get(size, 0) < of_each_size):
                of_shape[seen.shape] = taken + 1
                if unknown and seen.simulated is not None:
                    continue
                found.append(seen.candidate)
                of_size[size] = of_size.get(size, 0) + 1
        return found

    def simulate(self, candidate: Candidate) -> float:
        """Its seconds by the simulator."""
        known = self.judge.knows(candidate)
        seconds = self.judge.seconds(candidate)
        if not known:
            self.seen.was_simulated(candidate, seconds)
        return seconds

    def climb(self, start: Candidate, *, patience: int, floor: float = 0.0) -> tuple[Candidate, float]:
        """The best that small changes lead to, and its seconds; where nothing better is found or affordable, `start`.

        patience: neighbours that are simulated, the best by estimate first, before it gives up. floor: of the budget, at
        which it takes no further step.
        """
        best, seconds = start, self.simulate(start)
        open_kinds: list[Callable[[Candidate], list[Candidate]]] = [self._coarse, self._fine]
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
        new = [candidate for candidate in candidates if candidate not in self.seen]
        if new:
            rounds = [min(20, candidate.micro_batches(self.judge.problem.mini_batch)) for candidate in new]
            longest = max((len(candidate.stages) + 1) / 2 * count for candidate, count in zip(new, rounds, strict=True))
            self.judge.budget -= 2 * longest * (14 + len(new) / 12) + sum(map(_estimating, new))
            for candidate, seconds in zip(new, self.estimator.estimate(new).tolist(), strict=True):
                known = self.judge.seconds(candidate) if self.judge.knows(candidate) else None
                self.seen.add(candidate, seconds, simulated=known)
        estimates = [self.seen[candidate].estimate for candidate in candidates]
        order = np.argsort(estimates, kind="stable").tolist()
        return [candidates[place] for place in order if math.isfinite(estimates[place])]


def _estimating(candidate: Candidate) -> int:
    replicas = sum(len(stage.devices) for stage in candidate.stages)
    return replicas if replicas > MANY_DEVICES else _ESTIMATING
