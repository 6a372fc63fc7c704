"""From whole plans to the best one found: estimated and simulated in turns.

beams       the best by estimate, and their neighbours    0.6 of the budget is left
finalists   the best of all these, simulated              0.45
climbs      from the fastest, step by step, simulated     0.25
and again, with wider beams and from what is left
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .candidate import Candidate
from .effort import Effort
from .local_search import LocalSearch

# Finalists that are slower than the best by more than this are not climbed from.
_WORTH_A_CLIMB = 1.25

# Simulations that the budget should allow before all that are climbed from are opened at once.
_WORTH_OPENING_ALL = 60

# Finalists that are chosen together.
_AT_A_TIME = 6


class Ranking:
    """From whole plans to the best one found: beams, finalists, climbs, and all that again with what is left of the budget."""

    def __init__(self, local: LocalSearch, effort: Effort) -> None:
        self.local, self.judge, self.effort = local, local.judge, effort
        self.best: tuple[float, Candidate] | None = None
        self.width = effort.wide
        self.climbed: set[Candidate] = set()

    def run(self, starts: Sequence[Candidate], given: Sequence[Candidate]) -> tuple[Candidate, float] | None:
        """The best and its seconds; None where none fits memory."""
        effort, local, judge = self.effort, self.local, self.judge
        local.beam(starts, width=effort.beam_width, steps=effort.beam_steps, floor=effort.after_beams * effort.budget)
        # Given plans are simulated whatever it costs, and so is the best of ours.
        for candidate in [*given, *local.best(1)]:
            self._judge(candidate)
        while True:
            left, known = judge.budget, (len(local.seen), judge.simulated)
            self._widen(effort.after_beams * left)
            self._finalists(effort.finalists, floor=0.0)
            self._finalists(effort.more_finalists, floor=effort.after_finalists * left, of_each_shape=2)
            if self.best is None:
                return None
            self._climbs(floor=effort.after_climbs * left)
            if judge.budget < effort.again * effort.budget or known == (len(local.seen), judge.simulated):
                break
        return local.climb(self.best[1], patience=effort.last_patience)

    def _widen(self, floor: float) -> None:
        """Wider and wider beams, until there is nothing new or the budget is down to `floor`."""
        seen = 0
        while self.judge.budget > floor and seen < len(self.local.seen):
            seen = len(self.local.seen)
            few = {"of_each_size": self.width // 4, "of_each_shape": self.width // self.effort.wide}
            self.local.beam([], width=self.width, steps=self.effort.beam_steps, floor=floor, **few)
            self.width *= 2

    def _finalists(self, count: int, *, floor: float, of_each_shape: int = 1) -> None:
        """The best that aren't simulated yet are, so many, as long as that leaves so much of the budget; a few at a time.

        What is found of some changes what is expected of others.
        """
        done = 0
        while done < count:
            few = self.local.best(min(_AT_A_TIME, count - done), of_each_shape=of_each_shape, unknown=True)
            affordable = [c for c in few if self.judge.budget - self.judge.work(c) >= floor]
            if not affordable:
                return
            for candidate in affordable:
                if self.judge.budget - self.judge.work(candidate) >= floor:
                    self._judge(candidate)
            done += len(affordable)

    def _judge(self, candidate: Candidate) -> None:
        seconds = self.local.simulate(candidate)
        if math.isfinite(seconds) and (self.best is None or seconds < self.best[0]):
            self.best = (seconds, candidate)

    def _climbs(self, floor: float) -> None:
        """From the fastest that were simulated, and not climbed from yet; from the best there is then with more patience."""
        assert self.best is not None
        most = self.best[0] * _WORTH_A_CLIMB
        known = self.judge.known()
        places = [place for place, (start, seconds) in enumerate(known) if seconds < most and start not in self.climbed]
        places.sort(key=lambda place: known[place][1])
        starts = [known[place][0] for place in places[: self.effort.climbs]]
        # Together their neighbours cost less to estimate, but all of it even where the budget is used up by the first.
        if starts and self.judge.budget - floor > _WORTH_OPENING_ALL * self.judge.work(starts[0]):
            self.local.open_within(starts, floor=floor)
        for start in starts:
            self._climb(start, patience=self.effort.patience, floor=floor)
        self._climb(self.best[1], patience=self.effort.last_patience, floor=floor)

    def _climb(self, start: Candidate, *, patience: int, floor: float) -> None:
        assert self.best is not None
        self.climbed.add(start)
        candidate, seconds = self.local.climb(start, patience=patience, floor=floor)
        if seconds < self.best[0]:
            self.best = (seconds, candidate)
