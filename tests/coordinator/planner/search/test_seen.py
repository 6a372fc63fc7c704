"""What candidates are expected to take, and in which order they come."""

from __future__ import annotations

from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage
from edgeswarm_coordinator.planner.search.seen import SeenCandidates

KINDS = (0, 0, 1)


def of(*groups: tuple[int, ...], micro_batch: int = 4) -> Candidate:
    """Stages of one layer each over these devices."""
    return Candidate(
        micro_batch,
        tuple(CandidateStage(place, place + 1, group, (1,) * len(group), 1) for place, group in enumerate(groups)),
    )


def expected(seen: SeenCandidates) -> list[tuple[Candidate, float]]:
    return [(each.candidate, each.expected()) for each in seen.by_expectation()]


def test_the_simulators_word_counts_and_what_it_says_of_a_pattern() -> None:
    seen = SeenCandidates(KINDS)
    known, alike, other_size, other_groups = of((0,), (1,)), of((0,), (2,)), of((0,), (1,), micro_batch=2), of((0, 1))
    for candidate, estimate in ((known, 1.0), (alike, 1.5), (other_size, 2.0), (other_groups, 4.0)):
        seen.add(candidate, estimate)
    assert expected(seen) == [(known, 1.0), (alike, 1.5), (other_size, 2.0), (other_groups, 4.0)]
    seen.was_simulated(known, 3.0)
    assert expected(seen) == [(known, 3.0), (other_groups, 4.0), (alike, 4.5), (other_size, 6.0)]
    # The least that one of a pattern took beyond its estimate is what the others are expected to take.
    seen.was_simulated(other_size, 4.0)
    assert expected(seen) == [(known, 3.0), (other_size, 4.0), (other_groups, 4.0), (alike, 4.5)]
    seen.was_simulated(alike, 3.0)
    seen.add(of((1,), (2,)), 0.5)
    assert expected(seen)[0] == (of((1,), (2,)), 1.0)


def test_what_cannot_be_says_nothing_of_others() -> None:
    seen = SeenCandidates(KINDS)
    seen.add(of((0,)), 1.0)
    seen.add(of((2,)), 2.0)
    seen.was_simulated(of((0,)), float("inf"))
    seen.was_simulated(of((0, 1)), 7.0)  # that was never estimated
    assert expected(seen) == [(of((2,)), 2.0), (of((0,)), float("inf"))]
    assert len(seen) == 2
    assert of((0, 1)) not in seen


def test_those_of_one_shape_have_the_same_kinds_in_the_same_order_and_one_size() -> None:
    seen = SeenCandidates(KINDS)
    candidates = [of((0,), (2,)), of((1,), (2,)), of((2,), (0,)), of((0,), (2,), micro_batch=2)]
    for candidate in candidates:
        seen.add(candidate, 1.0)
    shapes = [seen[candidate].shape for candidate in candidates]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 3
