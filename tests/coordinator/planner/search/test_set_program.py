"""The program over sets of devices, against all orders, cuts and groups on what it estimates exactly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.search.group_costs import GroupCostTables
from edgeswarm_coordinator.planner.search.grouping import make_units
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.set_program import SetProgram, SketchedPipeline

from ..instances import make_instance

FAST = 1e12
PLENTY_IN_FLIGHT = (50,)


def sketches(
    instance: PlanningInstance, micro_batch: int, *, in_flight: tuple[int, ...] = PLENTY_IN_FLIGHT
) -> list[SketchedPipeline]:
    problem = SearchProblem(instance)
    tables = GroupCostTables(problem, make_units(problem), list(range(problem.layer_count + 1)))
    micro_batches = -(-problem.mini_batch // micro_batch)
    costs = tables.costs(micro_batch, in_flight)
    return SetProgram(tables).run(costs, micro_batches=micro_batches)


def pipelines_without_replicas(seconds: list[float], slower: list[float], micro_batches: int) -> float:
    """The best of all orders of all subsets, one device a stage: M x of the slowest, and the way to it."""
    count = len(seconds)
    best = float("inf")
    for size in range(1, min(count, len(slower)) + 1):
        for order in itertools.permutations(slower, size):
            for inner in itertools.combinations(range(1, count), size - 1):
                cuts = (0, *inner, count)
                x = [3 * factor * sum(seconds[cuts[p] : cuts[p + 1]]) for p, factor in enumerate(order)]
                best = min(best, max(micro_batches * value + sum(x[:place]) for place, value in enumerate(x)))
    return best


@given(
    seconds=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5),
    slower=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=3),
)
def test_with_one_sample_at_a_time_it_is_the_best_of_all_orders_and_subsets(
    seconds: list[float], slower: list[float]
) -> None:
    # A micro-batch of one sample can't be shared, so that no group is larger than one device.
    instance = make_instance(seconds, slower, mini_batch=6, bandwidth=FAST, param_bytes=0)
    best = sketches(instance, 1)[0].seconds
    assert best == pytest.approx(pipelines_without_replicas(seconds, slower, 6), rel=1e-6)


def test_a_slow_network_leaves_devices_idle() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0, 1.0), bandwidth=0.01)
    best = sketches(instance, 4)[0].outline
    assert [len(group) for group in best.groups] == [1]


def test_a_fast_network_uses_them_all() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0, 1.0, 1.0), bandwidth=FAST, param_bytes=0)
    best = sketches(instance, 4)[0]
    assert sum(len(group) for group in best.outline.groups) == 4
    assert best.seconds == pytest.approx(16 * 4 * 3.0 / 4, rel=0.3)


@pytest.mark.parametrize(
    ("memory_bytes", "layers_of_a"),
    [([1200, 800], {3}), ([1199, 800], {2}), ([1200, 400], {3}), ([1199, 400], set()), ([1200, 399], set())],
)
def test_memory_is_kept(memory_bytes: list[int], layers_of_a: set[int]) -> None:
    """A layer takes 400 bytes: 100 of parameters thrice, 50 of each of two samples in flight."""
    instance = make_instance((1.0,) * 4, (1.0, 3.0), memory_bytes, bandwidth=FAST)
    held = set()
    for sketch in sketches(instance, 1, in_flight=(2,)):
        layers = [end - first for first, end in itertools.pairwise(sketch.outline.cuts)]
        for (device,), count in zip(sketch.outline.groups, layers, strict=True):
            assert 400 * count <= memory_bytes[device]
            if device == 0:
                held.add(count)
    assert held == layers_of_a
