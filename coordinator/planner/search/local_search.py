"""From a good plan to a better one: the estimate ranks all small changes, the simulator decides among the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .candidate import Candidate
from .judge import Judge
from .moves import Moves
from .pipeline_estimate import PipelineEstimator

# A change has to bring this much: below it the simulator's last digits decide.
_LEAST_GAIN = 1e-6


class LocalSearch:
    """Climbs from candidates of one problem.

    width: changes that are simulated at a time, the best by estimate; patience: how many times as many before it gives up.
    """

    def __init__(
        self, moves: Moves, estimator: PipelineEstimator, judge: Judge, *, width: int = 6, patience: int = 3
    ) -> None:
        self.moves = moves
        self.estimator = estimator
        self.judge = judge
        self.width = width
        self.patience = patience
        self._tried: set[Candidate] = set()

    def climb(self, start: Candidate) -> tuple[Candidate, float]:
        """The best that small changes lead to, and its seconds; where nothing better is found or affordable, `start`."""
        best, seconds = start, self.judge.seconds(start)
        kinds: list[Callable[[Candidate], list[Candidate]]] = [self.moves.coarse, self.moves.fine]
        while kinds:
            found = self._step(best, seconds, kinds[0])
            if found is None:
                kinds.pop(0)
            else:
                best, seconds = found
        return best, seconds

    def _step(
        self, current: Candidate, seconds: float, neighbours: Callable[[Candidate], list[Candidate]]
    ) -> tuple[Candidate, float] | None:
        if self.judge.budget <= 0:
            return None
        ranked = self.rank([candidate for candidate in neighbours(current) if candidate not in self._tried])
        for begin in range(0, self.width * self.patience, self.width):
            best: tuple[Candidate, float] | None = None
            for candidate in ranked[begin : begin + self.width]:
                if not self.judge.affords(candidate):
                    continue
                self._tried.add(candidate)
                now = self.judge.seconds(candidate)
                if now < seconds * (1 - _LEAST_GAIN) and (best is None or now < best[1]):
                    best = (candidate, now)
            if best is not None:
                return best
        return None

    def rank(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The fastest by estimate first; the work of estimating is taken from the budget."""
        if not candidates:
            return []
        longest = max(
            len(candidate.stages) * min(20, candidate.micro_batches(self.judge.problem.mini_batch))
            for candidate in candidates
        )
        self.judge.budget -= 40 * longest + 20 * len(candidates)
        estimates = self.estimator.estimate(candidates)
        order = np.argsort(estimates, kind="stable")
        return [candidates[place] for place in order if math.isfinite(estimates[place])]
