"""Memory for the kernels of a second batch size, and of more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.kernel_memory import further_kernel_bytes, sizes_at_once
from edgeswarm_coordinator.planner.moved_shares import moved_shares
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.planner.search.in_passes import plan_in_passes
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.simulator.simulate import simulate

from .instances import make_instance, with_rest

KERNELS = 10_000  # of a layer, for one batch size


def with_kernels(instance: PlanningInstance, kernel_bytes: int = KERNELS) -> PlanningInstance:
    layers = tuple(replace(layer, kernel_bytes=kernel_bytes) for layer in instance.model.layers)
    return replace(instance, model=replace(instance.model, layers=layers))


def with_memory(instance: PlanningInstance, memory_bytes: int) -> PlanningInstance:
    """The same for every device."""
    return replace(instance, devices=tuple(replace(each, memory_bytes=memory_bytes) for each in instance.devices))


def two_stages(last: int | None) -> Plan:
    """Of four layers: three on a and b, the last on c. last: samples of the last of four micro-batches, where it is smaller."""
    stages = (Stage(0, 3, {"a": 3, "b": 1}, 2), Stage(3, 4, {"c": 4}, 1))
    return Plan("by hand", 4, 4, stages, last_micro_batch=last)


def in_passes(shares: dict[str, int], passes: dict[str, int]) -> Plan:
    return Plan("by hand", sum(shares.values()), 1, (Stage(0, 4, shares, 1, passes=passes),))


def test_a_smaller_last_micro_batch_has_kernels_of_its_own_where_a_replica_has_less_of_it() -> None:
    instance = with_kernels(make_instance(slower=(1.0, 1.0, 1.0)))
    assert further_kernel_bytes(instance, two_stages(None)) == {"a": 0, "b": 0, "c": 0}
    # Of three samples a has two, and b the one that it has always.
    assert further_kernel_bytes(instance, two_stages(3)) == {"a": 3 * KERNELS, "b": 0, "c": KERNELS}
    # Of one b has none.
    assert further_kernel_bytes(instance, two_stages(1)) == {"a": 3 * KERNELS, "b": 0, "c": KERNELS}


def test_passes_of_two_sizes_have_kernels_of_two() -> None:
    plan = in_passes({"a": 7, "b": 6, "c": 3}, {"a": 2, "b": 2})
    assert sizes_at_once(plan, plan.stages[0]) == {"a": {4, 3}, "b": {3}, "c": {3}}
    instance = with_kernels(make_instance(slower=(1.0, 1.0, 1.0)))
    assert further_kernel_bytes(instance, plan) == {"a": 4 * KERNELS, "b": 0, "c": 0}


def test_an_epochs_smaller_last_round_has_kernels_of_its_own() -> None:
    """Of four layers a and b have three, and c the last."""
    instance = with_kernels(make_instance(slower=(1.0, 1.0, 1.0)))
    # Full micro-batches alone; then 4 and 2, which are 2 and 0, or 1 and 1; and beside a last one of 3 of the other rounds.
    assert further_kernel_bytes(with_rest(instance, 8), two_stages(None)) == {"a": 0, "b": 0, "c": 0}
    uneven = with_rest(instance, 6)
    sizes = sizes_at_once(two_stages(None), two_stages(None).stages[0], rest=6)
    assert sizes in ({"a": {3, 2}, "b": {1}}, {"a": {3, 1}, "b": {1}})
    assert further_kernel_bytes(uneven, two_stages(None)) == {"a": 3 * KERNELS, "b": 0, "c": KERNELS}
    assert further_kernel_bytes(uneven, two_stages(3))["c"] == 2 * KERNELS


def test_a_search_reserves_them_for_a_smaller_last_round_of_an_epoch() -> None:
    instance = make_instance(slower=(1.0,), mini_batch=12)
    counts = {
        rest: SearchProblem(with_rest(instance, rest)).smaller_micro_batches(micro_batch)
        for rest, micro_batch in ((0, 4), (8, 4), (6, 4))
    }
    assert counts == {0: 0, 8: 0, 6: 1}
    assert SearchProblem(with_rest(instance, 7)).smaller_micro_batches(5) == 1  # of two samples, as in the other rounds
    assert SearchProblem(with_rest(instance, 6)).smaller_micro_batches(5) == 2


def test_what_earlier_shares_needed_is_still_there() -> None:
    instance = with_kernels(make_instance(slower=(1.0, 1.0, 1.0)))
    plans = [in_passes({"a": a, "b": 12 - a, "c": 4}, {}) for a in (6, 7, 6, 8)]
    now, earlier = plans[-1], plans[:-1]
    assert further_kernel_bytes(instance, now, earlier=earlier) == {"a": 8 * KERNELS, "b": 8 * KERNELS, "c": 0}


def test_a_plan_and_its_simulation_hold_them() -> None:
    instance, plan = make_instance(slower=(1.0, 1.0, 1.0), mini_batch=15), two_stages(3)
    without, held = plan_memory_bytes(instance, plan), plan_memory_bytes(with_kernels(instance), plan)
    assert {name: held[name] - without[name] for name in held} == {"a": 6 * KERNELS, "b": 3 * KERNELS, "c": 2 * KERNELS}
    simulated = simulate(with_kernels(instance), plan).memory
    plain = simulate(instance, plan).memory
    assert {name: simulated[name].peak_bytes - plain[name].peak_bytes for name in held} == {
        name: held[name] - without[name] for name in held
    }


@pytest.mark.parametrize("rest", [0, 7])
@pytest.mark.parametrize("planner", ["edgeswarm", *(name for name in PLANNERS if name != "edgeswarm")])
def test_no_planner_plans_beyond_memory(planner: str, rest: int) -> None:
    """On two devices that hold four layers and one set of their kernels, or less of them and two; with a smaller last round of an
    epoch one or two more.
    """
    instance = with_rest(with_kernels(make_instance(slower=(1.0, 3.0), mini_batch=10)), rest)
    most = (
        SearchProblem(instance).weight_bytes(0, 4) + 4 * 4 * 50 + (2 * 4 * KERNELS if rest else 0)
    )  # four samples at once
    tight = with_memory(instance, int(most))
    plan = make_plan(tight, planner)
    assert max(plan_memory_bytes(tight, plan).values()) <= most


def test_a_search_reserves_them_for_a_smaller_last_micro_batch() -> None:
    instance = with_kernels(make_instance(slower=(1.0,), mini_batch=10))
    weights = 4 * (3 * 100 + KERNELS)
    tight = SearchProblem(with_memory(instance, weights + 4 * 200))
    assert tight.largest_share(0, (0, 4), in_flight=1, micro_batch=5) == 4
    assert tight.largest_share(0, (0, 4), in_flight=1, micro_batch=4) == 0
    roomy = SearchProblem(with_memory(instance, weights + 4 * KERNELS + 4 * 200))
    assert roomy.largest_share(0, (0, 4), in_flight=1, micro_batch=4) == 4


def test_passes_are_of_one_size_where_there_is_no_room_for_two() -> None:
    """Of 7 samples six fit at once: 4 + 3, but for the kernels of a second size, or one after the other."""
    plain = make_instance(slower=(1.0,), mini_batch=7)
    for instance, passes in ((plain, 2), (with_kernels(plain, 250), 7)):
        weights = SearchProblem(instance).weight_bytes(0, 4)
        plan = plan_in_passes(with_memory(instance, int(weights) + 6 * 200))
        assert plan is not None
        assert plan.stages[0].passes == {"a": passes}


def test_shares_move_as_long_as_memory_holds_the_kernels_of_all() -> None:
    instance = with_kernels(make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12))
    plan = Plan("by hand", 12, 1, (Stage(0, 2, {"a": 6, "b": 6}, 1),))
    seconds = {"a": 36.0, "b": 72.0}
    moved = moved_shares(instance, plan, seconds)
    assert moved is not None
    of_one_more = plan_memory_bytes(instance, moved.plan, earlier=[plan])
    tight = with_memory(instance, max(of_one_more.values()))
    assert moved_shares(tight, plan, seconds) is not None
    before = Plan("by hand", 12, 1, (Stage(0, 2, {"a": 5, "b": 7}, 1),))
    assert moved_shares(tight, plan, seconds, earlier=[before]) is None
