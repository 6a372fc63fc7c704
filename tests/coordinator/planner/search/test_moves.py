"""Neighbours of a candidate: each a whole pipeline that fits memory, and none twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage, Outline, usual_in_flight
from edgeswarm_coordinator.planner.search.judge import make_bare_plan
from edgeswarm_coordinator.planner.search.moves import MOST_IN_FLIGHT, Moves, canonical
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.sample_shares import SampleSharing

from ..instances import instances, make_instance


def moves_of(problem: SearchProblem) -> Moves:
    return Moves(problem, SampleSharing(problem), (1, 2, 4))


def shapes(candidates: list[Candidate]) -> set[tuple[tuple[int, tuple[int, ...]], ...]]:
    return {tuple((stage.end, stage.devices) for stage in candidate.stages) for candidate in candidates}


def test_all_kinds_of_moves_are_there() -> None:
    problem = SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1, 1.2)))
    moves = moves_of(problem)
    start = moves.realise(Outline(4, (0, 2, 4), ((0,), (1,)), (4, 1)))
    assert start is not None
    found = moves.coarse(start)
    seen = shapes(found)
    assert ((1, (0,)), (4, (1,))) in seen  # a cut
    assert ((2, (1,)), (4, (0,))) in seen  # an exchange
    assert ((2, (0, 2)), (4, (1,))) in seen  # one more device
    assert ((2, (2,)), (4, (1,))) in seen  # another device
    assert ((4, (1,)),) in seen  # one fewer, its layers to the other
    assert ((4, (0, 1)),) in seen  # two stages made one
    assert any(len(shape) == 3 for shape in seen)  # a stage split
    assert {candidate.micro_batch for candidate in found} == {1, 2, 4}


def test_no_more_are_in_flight_than_anybody_needs() -> None:
    """Memory would hold all 8192 micro-batches of a round, and following them would take minutes."""
    problem = SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1, 1.2), mini_batch=8192))
    moves = moves_of(problem)
    start = moves.realise(Outline(1, (0, 2, 4), ((0,), (1,)), (4, 1)))
    assert start is not None
    found = [*moves.coarse(start), *moves.fine(start)]
    assert max(stage.in_flight for candidate in found for stage in candidate.stages) == MOST_IN_FLIGHT


def test_neighbours_change_places_with_and_without_their_layers() -> None:
    moves = moves_of(SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1, 1.2))))
    start = moves.realise(Outline(4, (0, 1, 4), ((0,), (1,)), (4, 1)))
    assert start is not None
    seen = shapes(moves.coarse(start))
    assert ((1, (1,)), (4, (0,))) in seen
    assert ((3, (1,)), (4, (0,))) in seen


def test_like_devices_are_named_in_their_order_whoever_was_named() -> None:
    plain = make_instance((1.0,) * 4, (1.0, 1.0, 1.0), memory_bytes=(10**9,) * 3)
    problem = SearchProblem(
        replace(
            plain,
            profiles=dict.fromkeys(plain.profiles, plain.profiles["class-a"]),
            devices=tuple(replace(device, profile="class-a") for device in plain.devices),
        )
    )
    assert problem.members == [(0, 1, 2)]
    stages = (CandidateStage(0, 2, (2,), (4,), 4), CandidateStage(2, 4, (1, 0), (3, 1), 1))
    named = canonical(problem, Candidate(4, stages))
    assert [stage.devices for stage in named.stages] == [(0,), (1, 2)]
    assert [stage.shares for stage in named.stages] == [(4,), (3, 1)]
    assert canonical(problem, named) == named


def test_fine_moves_change_shares_and_in_flight() -> None:
    problem = SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1)))
    moves = moves_of(problem)
    start = moves.realise(Outline(4, (0, 4), ((0, 1),), usual_in_flight(1)))
    assert start is not None
    assert start.stages[0].shares == (2, 2)
    found = moves.fine(start)
    assert {candidate.stages[0].shares for candidate in found} >= {(1, 3), (3, 1)}
    assert {candidate.stages[0].in_flight for candidate in found} == {1, 2}


def test_other_shares_come_with_the_usual_in_flight_too() -> None:
    problem = SearchProblem(make_instance((1.0,) * 4, (1.0, 1.1, 1.2)))
    moves = moves_of(problem)
    start = moves.realise(Outline(4, (0, 2, 4), ((0,), (1, 2)), (2, 1)))
    assert start is not None
    assert start.stages[1].shares == (2, 2)
    found = {(c.stages[0].in_flight, c.stages[1].shares) for c in moves.fine(start)}
    assert {(2, (1, 3)), (4, (1, 3)), (2, (3, 1)), (4, (3, 1))} <= found


def test_devices_of_a_kind_are_named_in_order() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0), memory_bytes=[10**9] * 2)
    # Classes of their own with the same times are still two kinds: only what is the same by name is interchangeable.
    problem = SearchProblem(instance)
    assert sorted(problem.kinds) == [0, 1]
    start = moves_of(problem).realise(Outline(2, (0, 2, 4), ((1,), (0,)), (4, 1)))
    assert start is not None
    assert canonical(problem, start) == start


@settings(max_examples=20, deadline=None)
@given(instance=instances(uniform_links=False))
def test_neighbours_are_whole_and_fit(instance: PlanningInstance) -> None:
    problem = SearchProblem(instance)
    moves = moves_of(problem)
    layers = problem.layer_count
    groups = tuple((device,) for device in range(min(problem.device_count, layers)))
    cuts = (*range(len(groups)), layers)
    start = moves.realise(Outline(2, cuts, groups, usual_in_flight(len(groups))))
    assume(start is not None)
    assert start is not None
    found = [*moves.coarse(start), *moves.fine(start)]
    assert start not in found
    for candidate in found:
        plan = make_bare_plan(problem, candidate, planner="neighbour")
        instance.validate_plan(plan)
        for stage in candidate.stages:
            for device, share in zip(stage.devices, stage.shares, strict=True):
                assert share <= problem.largest_share(
                    *(device, (stage.first, stage.end)),
                    in_flight=stage.in_flight,
                    micro_batch=plan.micro_batch,
                )
