"""Every run between two cuts has one place."""

from __future__ import annotations

import itertools

import pytest

from edgeswarm_coordinator.planner.search.runs import Runs


@pytest.mark.parametrize("cuts", [2, 3, 7])
def test_every_run_has_one_place(cuts: int) -> None:
    runs = Runs(cuts)
    pairs = list(zip(runs.first.tolist(), runs.end.tolist(), strict=True))
    assert pairs == list(itertools.combinations(range(cuts), 2))
    assert len(runs) == len(pairs)


def test_those_from_the_first_cuts_stand_first() -> None:
    runs = Runs(4)
    assert [runs.of_first_cuts(count) for count in (1, 2, 3)] == [3, 5, 6]
    assert [(int(runs.first[place]), int(runs.end[place])) for place in runs.to_end] == [(0, 3), (1, 3), (2, 3)]
