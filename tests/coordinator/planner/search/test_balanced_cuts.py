"""Cuts for given groups, against all cuts that there are."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.search.balanced_cuts import BalancedCuts
from edgeswarm_coordinator.planner.search.problem import SearchProblem

from ..instances import instances, make_instance


def balanced(problem: SearchProblem) -> BalancedCuts:
    forward, backward = problem.seconds
    return BalancedCuts(
        problem, speed=lambda device: 1 / float((forward + backward)[problem.class_of[device], problem.mini_batch, -1])
    )


def stage_seconds(problem: SearchProblem, device: int, layers: tuple[int, int], micro_batch: int) -> float:
    first, end = layers
    of_class = problem.class_of[device]
    return float(sum(rows[of_class, micro_batch, end] - rows[of_class, micro_batch, first] for rows in problem.seconds))


def least_head_seconds(problem: SearchProblem, cuts: tuple[int, ...], micro_batch: int) -> float:
    """Of the first stage, so that no other one is late with the last micro-batch; device p has stage p."""
    micro_batches = problem.micro_batches(micro_batch)
    low, high = 0.0, 1e6
    for _ in range(80):
        seconds = (low + high) / 2
        late, fits = 0.0, True
        for place, layers in enumerate(itertools.pairwise(cuts)):
            if place:
                carried = problem.cut_bytes[layers[0]] + problem.answered_bytes[layers[0]]
                late += seconds + micro_batch * carried / problem.links[place - 1][place]
            most = max(0.0, seconds - late / micro_batches)
            fits = fits and stage_seconds(problem, place, layers, micro_batch) <= most
        low, high = (low, seconds) if fits else (seconds, high)
    return high


def test_faster_devices_get_more_layers_and_the_first_one_most() -> None:
    alike = SearchProblem(make_instance((1.0,) * 12, (1.0, 1.0, 1.0)))
    first, second = balanced(alike).cuts(((0,), (1,), (2,)), 1)[1:3]  # type: ignore[index]
    assert first >= second - first >= 12 - second
    uneven = SearchProblem(make_instance((1.0,) * 12, (1.0, 3.0)))
    assert balanced(uneven).cuts(((0,), (1,)), 1)[1] >= 9  # type: ignore[index]
    assert balanced(uneven).cuts(((1,), (0,)), 1)[1] <= 5  # type: ignore[index]


def test_replicas_share_a_stages_samples() -> None:
    problem = SearchProblem(make_instance((1.0,) * 12, (1.0, 1.0, 1.0)))
    pair_first = balanced(problem).cuts(((0, 1), (2,)), 4)
    pair_last = balanced(problem).cuts(((0,), (1, 2)), 4)
    assert pair_first is not None
    assert pair_last is not None
    assert pair_first[1] > pair_last[1]


def test_a_layer_for_each_group_is_the_least() -> None:
    problem = SearchProblem(make_instance((1.0, 1.0), (1.0, 1.0, 1.0)))
    assert balanced(problem).cuts(((0,), (1,), (2,)), 1) is None
    assert balanced(problem).cuts(((0,), (2,)), 1) == (0, 1, 2)
    assert balanced(problem).cuts(((0, 1, 2),), 1) == (0, 2)


@settings(max_examples=60, deadline=None)
@given(instances(), st.data())
def test_no_other_cuts_let_the_first_device_be_quicker(instance: PlanningInstance, data: st.DataObject) -> None:
    quick = tuple(tuple(1e12 * rate for rate in row) for row in instance.network.bandwidth)
    problem = SearchProblem(replace(instance, network=replace(instance.network, bandwidth=quick)))
    count = data.draw(st.integers(1, min(problem.device_count, problem.layer_count, 3)))
    micro_batch = data.draw(st.integers(1, problem.mini_batch))
    cuts = balanced(problem).cuts(tuple((device,) for device in range(count)), micro_batch)
    assert cuts is not None
    assert cuts[0] == 0
    assert cuts[-1] == problem.layer_count
    assert all(before < after for before, after in itertools.pairwise(cuts))
    inner = itertools.combinations(range(1, problem.layer_count), count - 1)
    best = min(least_head_seconds(problem, (0, *some, problem.layer_count), micro_batch) for some in inner)
    whole = stage_seconds(problem, 0, (0, problem.layer_count), micro_batch)
    if best < whole:  # else nothing is as quick as the first device by itself
        assert least_head_seconds(problem, cuts, micro_batch) <= best + 2e-3 * whole
