"""Rates of methods that ran in turns, their ratios, and what a ratio must exceed. Pure.

A ratio is taken within a repeat, since its runs are neighbours in time, and the median over the repeats counts. The rate there of
what ran twice is the geometric mean of both runs, between which the others ran. What a ratio must exceed, or it reads `equal`, is
the larger of two: the same setting against itself in the worst repeat, and how far the ratio of a single repeat is from that
median. Both as factors, so that it doesn't matter which method is divided by which: a ratio one of whose repeats is at 1 or
beyond is `equal`.

    repeat 0   ours  others  ours, again         repeat 0   ours  others
    repeat 1   ours  others  ours, again         repeat 1   ours  others      `against_the_next`: the run of repeat 1 is
                                                 repeat 2   ours  others      also that of repeat 0 once more
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.measuring import Spread

OURS = "edgeswarm"
# At the end of a name: the same once more, whose distance from the first run is the noise.
RUN_AGAIN = ", again"


@dataclass(frozen=True)
class Estimate:
    """One way to tell how fast methods are. rates: by method and repeat, samples per second; methods that failed have none.
    own_method: the one that is compared with the others, and whose runs tell the noise.
    """

    rates: Mapping[str, Mapping[int, float]]
    own_method: str = OURS

    @classmethod
    def against_the_next(
        cls,
        runs: Iterable[Mapping[str, Any]],
        rate: Callable[[Any], float],
        *,
        method: str,
        own_method: str = OURS,
    ) -> Estimate:
        """Of runs none of which was made twice in a repeat. rate: of a run. method: by which key a run has its method's name."""
        rates: dict[str, dict[int, float]] = {}
        for told in runs:
            rates.setdefault(told[method], {})[told["repeat"]] = rate(told)
        own = rates.get(own_method, {})
        rates[own_method + RUN_AGAIN] = {repeat: own[repeat + 1] for repeat in own if repeat + 1 in own}
        return cls(rates, own_method)

    def own(self, method: str) -> dict[int, float]:
        """By repeat: of one method by itself, over both its runs where it ran twice."""
        again = self.rates.get(method + RUN_AGAIN, {})
        return {
            repeat: math.sqrt(rate * again.get(repeat, rate)) for repeat, rate in self.rates.get(method, {}).items()
        }

    @property
    def noise(self) -> float | None:
        """Of the same setting against itself, 0.02 for 2 %; None while it was not run twice in a repeat."""
        first, again = self.rates.get(self.own_method, {}), self.rates.get(self.own_method + RUN_AGAIN, {})
        return max((apart(first[repeat] / again[repeat]) for repeat in first if repeat in again), default=None)

    def speed_up(self, other: str, *, of: str | None = None) -> Spread | None:
        """The rate of `of` (by default the own method's) by the other's, over the repeats that both have; None for no such."""
        ours, theirs = self.own(self.own_method if of is None else of), self.own(other)
        found = [ours[repeat] / theirs[repeat] for repeat in ours if repeat in theirs]
        return Spread.of(found) if found else None

    def must_exceed(self, ratio: Spread, otherwise: Spread | None = None) -> float:
        """How far from 1 a ratio may be that still says nothing: the noise, by how much one of its repeats is off, or by how much
        the same ratio is otherwise, by another estimate. Infinite where nobody knows the noise.
        """
        noise = math.inf if self.noise is None else self.noise
        other = 0.0 if otherwise is None else apart(ratio.median / otherwise.median)
        return max(noise, repeats_apart(ratio), other)

    def is_equal(self, ratio: Spread, otherwise: Spread | None = None) -> bool:
        return apart(ratio.median) <= self.must_exceed(ratio, otherwise)

    def shown(self, ratio: Spread | None, otherwise: Spread | None = None) -> str:
        """`1.31 (1.25 to 1.40)`, or `equal (1.02, 0.97 to 1.05)`; nothing for None."""
        if ratio is None:
            return ""
        if not self.is_equal(ratio, otherwise):
            return ratio.shown()
        repeats = f", {ratio.least:.2f} to {ratio.most:.2f}" if ratio.count > 1 else ""
        return f"equal ({ratio.median:.2f}{repeats})"

    @property
    def shown_noise(self) -> str:
        """`8%`; nothing where nobody knows it."""
        return "" if self.noise is None else f"{self.noise:.0%}"


def apart(ratio: float) -> float:
    """How far from 1: 0.25 for 1.25 and for 0.8."""
    return max(ratio, 1 / ratio) - 1


def repeats_apart(ratio: Spread) -> float:
    """How far one of a ratio's repeats is from their median, at the most."""
    return max(apart(extreme / ratio.median) for extreme in (ratio.least, ratio.most))
