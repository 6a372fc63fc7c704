"""All candidates that a search has estimated, and what each of them is expected to take.

expected    the simulator's seconds, where they are known; else its estimate, times what the simulator found
            others of its pattern to take beyond theirs,
            or, where no such is known, others with groups of the same sizes at other micro-batch sizes

Thousands are sorted by that dozens of times in a search, so that what is asked for each time is at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .candidate import Candidate


class Pattern:
    """Candidates of one pattern err alike when they are estimated. beyond: the least ratio of simulated to estimated seconds."""

    __slots__ = ("beyond",)

    def __init__(self) -> None:
        self.beyond: float | None = None

    def met(self, ratio: float) -> None:
        self.beyond = ratio if self.beyond is None else min(ratio, self.beyond)


class SeenCandidate:
    """shape: a number that those of the same groups in the same order, and one size, have in common.

    estimate: seconds of a round. simulated: the same by the simulator; None where it isn't known.
    pattern: one micro-batch size, groups of the same sizes. sizes: groups of the same sizes.
    """

    __slots__ = ("candidate", "estimate", "pattern", "shape", "simulated", "sizes")

    def __init__(self, candidate: Candidate, estimate: float, *, shape: int, pattern: Pattern, sizes: Pattern) -> None:
        self.candidate = candidate
        self.estimate = estimate
        self.simulated: float | None = None
        self.shape = shape
        self.pattern = pattern
        self.sizes = sizes

    def expected(self) -> float:
        """Seconds of a round."""
        if self.simulated is not None:
            return self.simulated
        beyond = self.pattern.beyond
        if beyond is None:
            beyond = self.sizes.beyond
        return self.estimate if beyond is None else self.estimate * beyond


class SeenCandidates:
    """kinds: by device, which of them are interchangeable."""

    def __init__(self, kinds: Sequence[int]) -> None:
        self._kinds = kinds
        self._seen: dict[Candidate, SeenCandidate] = {}
        self._shapes: dict[object, int] = {}
        self._patterns: dict[object, Pattern] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate in self._seen

    def __getitem__(self, candidate: Candidate) -> SeenCandidate:
        return self._seen[candidate]

    def add(self, candidate: Candidate, estimate: float, *, simulated: float | None = None) -> None:
        """One that isn't there yet."""
        kinds, size = self._kinds, candidate.micro_batch
        groups = tuple([tuple(sorted([kinds[device] for device in stage.devices])) for stage in candidate.stages])
        sizes = tuple(map(len, groups))
        self._seen[candidate] = SeenCandidate(
            candidate,
            estimate,
            shape=self._shapes.setdefault((size, groups), len(self._shapes)),
            pattern=self._patterns.setdefault((size, sizes), Pattern()),
            sizes=self._patterns.setdefault(sizes, Pattern()),
        )
        self._seen[candidate].simulated = simulated

    def was_simulated(self, candidate: Candidate, seconds: float) -> None:
        """What the simulator says of a candidate, which may not be among these."""
        seen = self._seen.get(candidate)
        if seen is None:
            return
        seen.simulated = seconds
        if seen.estimate > 0 and math.isfinite(seconds):
            seen.pattern.met(seconds / seen.estimate)
            seen.sizes.met(seconds / seen.estimate)

    def by_expectation(self) -> list[SeenCandidate]:
        """The fastest first; of equals those that came first."""
        return sorted(self._seen.values(), key=SeenCandidate.expected)
