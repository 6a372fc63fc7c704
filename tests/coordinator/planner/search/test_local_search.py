"""What is expected of a candidate: its estimate, what others of its pattern took beyond theirs, the simulator's word."""

from __future__ import annotations

import pytest

from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage
from edgeswarm_coordinator.planner.search.judge import Judge
from edgeswarm_coordinator.planner.search.local_search import LocalSearch
from edgeswarm_coordinator.planner.search.moves import Moves
from edgeswarm_coordinator.planner.search.pipeline_estimate import PipelineEstimator
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.sample_shares import SampleSharing

from ..instances import make_instance


def two_stages(cut: int, micro_batch: int = 4) -> Candidate:
    stages = (CandidateStage(0, cut, (0,), (micro_batch,), 4), CandidateStage(cut, 4, (1,), (micro_batch,), 1))
    return Candidate(micro_batch, stages)


@pytest.fixture
def search() -> LocalSearch:
    problem = SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1)))
    moves = Moves(problem, SampleSharing(problem), (1, 2, 4))
    return LocalSearch(moves, PipelineEstimator(problem), Judge(problem, budget=1e6))


def test_what_is_simulated_is_no_longer_unknown(search: LocalSearch) -> None:
    candidates = search.estimate([two_stages(cut) for cut in (1, 2, 3)])
    assert candidates[0] == two_stages(2)
    search.simulate(candidates[0])
    assert search.best(3, of_each_shape=3)[0] == candidates[0]
    assert search.best(3, of_each_shape=3, unknown=True) == candidates[1:]


def test_a_pattern_that_takes_longer_than_estimated_falls_behind(search: LocalSearch) -> None:
    candidates = [two_stages(2), two_stages(1), two_stages(2, micro_batch=2)]
    search.estimate(candidates)
    simulated = Judge(search.judge.problem, budget=1e6).seconds(two_stages(2))
    # As if the estimates of all micro-batches of 4 were a tenth of what they take.
    for candidate in candidates[:2]:
        search.seen[candidate].estimate = simulated / 10
    assert search.best(1) == [candidates[0]]
    search.simulate(candidates[0])
    assert search.best(1, unknown=True) == [candidates[2]]


def test_neighbours_are_estimated_once(search: LocalSearch) -> None:
    search.open([two_stages(2)])
    seen, budget = len(search.seen), search.judge.budget
    assert seen > 5
    search.open([two_stages(2)])
    assert (len(search.seen), search.judge.budget) == (seen, budget)


def test_what_a_pattern_takes_beyond_its_estimate_is_expected_at_other_sizes(search: LocalSearch) -> None:
    known, same_groups = two_stages(2), two_stages(1, micro_batch=2)
    one_stage = Candidate(2, (CandidateStage(0, 4, (0,), (2,), 1),))
    search.estimate([known, same_groups, one_stage])
    simulated = Judge(search.judge.problem, budget=1e6).seconds(known)
    for candidate, estimate in ((known, simulated / 10), (same_groups, 1.0), (one_stage, 9.0)):
        search.seen[candidate].estimate = estimate
    search.simulate(known)
    assert search.best(3, unknown=True) == [one_stage, same_groups]
