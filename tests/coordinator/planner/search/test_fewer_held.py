"""K is cut back where it brings nothing, and kept where it does."""

from __future__ import annotations

from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage
from edgeswarm_coordinator.planner.search.fewer_held import with_fewer_held
from edgeswarm_coordinator.planner.search.judge import Judge
from edgeswarm_coordinator.planner.search.problem import SearchProblem

from ..instances import make_instance


def trimmed(in_flight: tuple[int, int], *, budget: float = 1e6) -> tuple[tuple[int, ...], float, float]:
    """K of each stage, the seconds before and after, of two equal stages on quick links: 1F1B needs 3 and 1 in flight."""
    problem = SearchProblem(make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=16))
    stages = (CandidateStage(0, 1, (0,), (1,), in_flight[0]), CandidateStage(1, 2, (1,), (1,), in_flight[1]))
    candidate = Candidate(1, stages)
    before = Judge(problem, budget=1e6).seconds(candidate)
    found, seconds = with_fewer_held(Judge(problem, budget=budget), candidate, before)
    return tuple(stage.in_flight for stage in found.stages), before, seconds


def test_what_brings_nothing_is_not_held() -> None:
    held, before, after = trimmed((16, 16))
    assert held == (4, 1)
    assert after <= before * (1 + 1e-6)


def test_the_usual_is_left_alone() -> None:
    assert trimmed((4, 1))[0] == (4, 1)
    assert trimmed((2, 1))[0] == (2, 1)


def test_without_a_budget_nothing_changes() -> None:
    held, before, after = trimmed((16, 16), budget=0.0)
    assert held == (16, 16)
    assert after == before
