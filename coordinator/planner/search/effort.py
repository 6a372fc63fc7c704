"""How much the search looks at: counted in work, so that the same devices get the same plan on a slow machine and a fast one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .problem import SearchProblem

# With more of them a search doesn't look at them one by one.
MANY_DEVICES = 16


@dataclass(frozen=True)
class Effort:
    """How much to look at. budget: see Judge. sketches: of the set program, made into whole plans.

    beam_width, beam_steps: see LocalSearch.beam. wide: the width of another beam; wider ones follow.
    finalists: simulated whatever is left of the budget; more_finalists: while enough is left.
    after_beams, after_finalists, after_climbs: parts of the budget that each of them leaves to what comes behind. What the
    climbs leave goes the same way again, until it is no more than the part `again` of the whole.
    climbs: finalists that are climbed from. patience: see LocalSearch.climb; last_patience: of the climb from the best.
    """

    budget: float = 62_000.0
    sketches: int = 60
    beam_width: int = 4
    beam_steps: int = 6
    wide: int = 12
    after_beams: float = 0.6
    finalists: int = 10
    more_finalists: int = 60
    after_finalists: float = 0.45
    after_climbs: float = 0.25
    again: float = 0.1
    climbs: int = 8
    patience: int = 8
    last_patience: int = 64

    def times(self, factor: float) -> Effort:
        """With such a part of the budget."""
        return replace(self, budget=self.budget * factor)


def usual_effort(problem: SearchProblem) -> Effort:
    """About a second for a handful of devices, three for ten of them or for very deep models, a minute for a hundred."""
    if has_many_devices(problem):
        return Effort(budget=1_500_000.0)
    if problem.device_count > 6 or problem.layer_count > 180:
        return Effort(budget=200_000.0)
    return Effort(budget=120_000.0) if is_small(problem) else Effort()


def has_many_devices(problem: SearchProblem) -> bool:
    return problem.device_count > MANY_DEVICES


def is_small(problem: SearchProblem) -> bool:
    """The set program takes some milliseconds."""
    return problem.device_count <= 4 and problem.layer_count <= 16 and problem.mini_batch <= 64
