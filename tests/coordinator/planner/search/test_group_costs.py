"""Costs of groups: samples shared one by one, and of large micro-batches by portions that come near it."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from edgeswarm_coordinator.planner.search import group_costs
from edgeswarm_coordinator.planner.search.group_costs import GroupCosts, GroupCostTables
from edgeswarm_coordinator.planner.search.grouping import make_units
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.runs import Runs

from ..instances import make_instance

# Held by neither of the slower devices with more than some hundred samples of a layer.
PROBLEM = SearchProblem(
    make_instance(slower=(1.0, 2.3, 5.1), memory_bytes=(10**9, 30_000, 20_000), bandwidth=300.0, mini_batch=1000)
)


def costs_of(micro_batch: int, problem: SearchProblem = PROBLEM) -> GroupCosts:
    tables = GroupCostTables(problem, make_units(problem), [0, 1, 2, 3, 4])
    return tables.costs(micro_batch, (1, 2))


def like_devices(count: int) -> SearchProblem:
    """Any of them holds a part of a micro-batch of 1000 samples that is just large enough for all of them."""
    plain = make_instance(
        slower=(1.0,) * count, mini_batch=1000, memory_bytes=(1200 + 200 * -(-1000 // count),) * count
    )
    return SearchProblem(replace(plain, profiles=dict.fromkeys(plain.profiles, plain.profiles["class-a"])))


@pytest.mark.parametrize("problem", [PROBLEM, like_devices(7), like_devices(15)])
@pytest.mark.parametrize("micro_batch", [100, 333, 1000])
def test_portions_come_near_single_samples(micro_batch: int, problem: SearchProblem) -> None:
    by_portions = costs_of(micro_batch, problem)
    with mock.patch.object(group_costs, "_LEAST_PORTIONS", micro_batch):
        exact = costs_of(micro_batch, problem)
    assert (np.isfinite(by_portions.seconds) == np.isfinite(exact.seconds)).all()
    known = np.isfinite(exact.seconds)
    assert by_portions.seconds[known] == pytest.approx(exact.seconds[known], rel=0.13)
    assert (by_portions.worthwhile == exact.worthwhile).all()


def test_a_group_takes_as_long_as_all_samples_take_it() -> None:
    costs = costs_of(20)
    whole = Runs(5).to_end[0]
    alone = costs.seconds[0][:, whole]
    # Of all groups the one of all devices, the last, is the fastest over the whole model.
    assert alone[np.isfinite(alone)].min() == alone[-1]
    assert costs.largest_share[0][-1, whole] >= 20 / 3


def test_what_is_held_counts_in_those_runs_alone_that_it_does_not_fit() -> None:
    tables = GroupCostTables(PROBLEM, make_units(PROBLEM), [0, 1, 2, 3, 4])
    together = tables.costs(100, (1, 4, 16))
    for place, held in enumerate(together.in_flight):
        alone = tables.costs(100, (held,))
        assert (together.seconds[place] == alone.seconds[0]).all()
        assert (together.largest_share[place] == alone.largest_share[0]).all()
    assert (together.seconds[0] != together.seconds[2]).any()
