"""edgeswarm's planner: whole plans, as fast as the best there is, whatever the order of the devices' list."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bench.random_instances import random_instance
from edgeswarm.plan import Plan
from edgeswarm.profile import DataSource, Network, PlanningInstance
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE
from edgeswarm_coordinator.planner.comparison.exhaustive import find_optimum
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage
from edgeswarm_coordinator.planner.search.edgeswarm import SLOWER_WITH_IT, Found, of_one_size, plan_by_search
from edgeswarm_coordinator.planner.search.effort import Effort
from edgeswarm_coordinator.planner.search.judge import Judge
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.sizes import all_sizes
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ...quick_search import QUICK
from ..instances import instances, make_instance, with_rest, with_weights_apart

# The same ones at every run: of a search that isn't exhaustive a rare instance may show more. `python -m bench.optimum_gap`
# looks at many.
few = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def seconds_of(instance: PlanningInstance) -> float:
    plan = plan_by_search(instance, effort=QUICK)
    return math.inf if plan is None else round_seconds(instance, plan)


def with_bandwidth(instance: PlanningInstance, factor: float) -> PlanningInstance:
    rows = tuple(tuple(value * factor for value in row) for row in instance.network.bandwidth)
    return replace(instance, network=Network(instance.network.latency_seconds, rows))


def with_memory(instance: PlanningInstance, factor: int) -> PlanningInstance:
    devices = tuple(replace(device, memory_bytes=device.memory_bytes * factor) for device in instance.devices)
    return replace(instance, devices=devices)


@few
@given(instance=instances(uniform_links=False))
def test_plans_are_whole_and_fit_memory(instance: PlanningInstance) -> None:
    plan = plan_by_search(instance, effort=QUICK)
    assume(plan is not None)
    assert plan is not None
    instance.validate_plan(plan)
    assert {*plan.devices, *(idle.name for idle in plan.idle)} == set(instance.device_names)
    memory = {device.name: device.memory_bytes for device in instance.devices}
    assert all(needed <= memory[name] for name, needed in plan_memory_bytes(instance, plan).items())
    assert plan.predicted is not None
    assert plan.predicted.round_seconds == round_seconds(instance, plan)


def test_pipelines_have_gradients_of_weights_apart_where_that_is_faster() -> None:
    """Links over which a replica's gradients can't go, and so two stages."""
    plain = make_instance((1.0,) * 8, (1.0, 1.0), param_bytes=10_000, bandwidth=100.0, mini_batch=8)
    one_in_one_go = plan_by_search(plain, effort=QUICK)
    assert one_in_one_go is not None
    assert (len(one_in_one_go.stages), one_in_one_go.schedule) == (2, ONE_FORWARD_ONE_BACKWARD)
    apart = with_weights_apart(plain, 0.5)
    plan = plan_by_search(apart, effort=QUICK)
    assert plan is not None
    assert (len(plan.stages), plan.schedule) == (2, ZERO_BUBBLE)
    assert plan.predicted is not None
    assert plan.predicted.round_seconds == round_seconds(apart, plan) < 0.95 * round_seconds(plain, one_in_one_go)
    # Where they take much longer so, they don't.
    slow = plan_by_search(with_weights_apart(plain, 1.0, rest=1.0), effort=QUICK)
    assert slow is not None
    assert slow.schedule == ONE_FORWARD_ONE_BACKWARD


def test_a_given_plan_with_weights_apart_is_judged_by_its_own_schedule() -> None:
    """With hardly any effort, in which it would not be found again."""
    apart = with_weights_apart(
        make_instance((1.0,) * 8, (1.0, 1.5), param_bytes=10_000, bandwidth=100.0, mini_batch=8), 0.5
    )
    given_plan = plan_by_search(apart, effort=QUICK)
    assert given_plan is not None
    assert given_plan.schedule == ZERO_BUBBLE
    found = plan_by_search(apart, seeds=[given_plan], effort=Effort(budget=1.0))
    assert found is not None
    assert round_seconds(apart, found) <= round_seconds(apart, given_plan) * (1 + 1e-9)


@few
@given(instance=instances(uniform_links=False), weights=st.sampled_from([0.3, 0.6]))
def test_knowing_weights_apart_makes_no_plan_slower_and_each_fits_memory(
    instance: PlanningInstance, weights: float
) -> None:
    apart = with_weights_apart(instance, weights)
    plan = plan_by_search(apart, effort=QUICK)
    if plan is None:
        assert plan_by_search(instance, effort=QUICK) is None
    assume(plan is not None)
    assert plan is not None
    memory = {device.name: device.memory_bytes for device in instance.devices}
    assert all(needed <= memory[name] for name, needed in plan_memory_bytes(apart, plan).items())
    assert round_seconds(apart, plan) <= seconds_of(instance) * (1 + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(6))
def test_it_is_near_the_optimum(number: int) -> None:
    instance = random_instance(7, number)
    optimum = find_optimum(instance, all_sizes(instance.training.mini_batch, least_batch=1))
    plan = make_plan_or_none(instance)
    if optimum.plan is None:
        assert plan is None
        return
    assert plan is not None
    assert optimum.seconds * (1 - 1e-5) <= round_seconds(instance, plan) <= optimum.seconds * 1.05


def make_plan_or_none(instance: PlanningInstance) -> Plan | None:
    return plan_by_search(instance, effort=Effort(budget=60_000.0))


@few
@given(instance=instances(uniform_links=False), chance=st.randoms())
def test_the_order_of_the_list_changes_nothing(instance: PlanningInstance, chance: object) -> None:
    names = list(instance.device_names)
    chance.shuffle(names)  # type: ignore[attr-defined]
    one = plan_by_search(instance, effort=QUICK)
    other = plan_by_search(instance.only(names), effort=QUICK)
    if one is None or other is None:
        assert one is other
        return
    assert (other.micro_batch, other.stages, other.backup) == (one.micro_batch, one.stages, one.backup)


@few
@given(instance=instances(), factor=st.sampled_from([1.5, 4.0]))
def test_more_bandwidth_is_not_slower(instance: PlanningInstance, factor: float) -> None:
    assert seconds_of(with_bandwidth(instance, factor)) <= seconds_of(instance) * 1.02


@few
@given(instance=instances(), factor=st.sampled_from([2, 3]))
def test_more_memory_is_not_slower(instance: PlanningInstance, factor: int) -> None:
    before = seconds_of(instance)
    after = seconds_of(with_memory(instance, factor))
    assert after <= before * 1.02 or before == math.inf


@pytest.mark.thorough
def test_no_other_planner_is_faster() -> None:
    instance = make_instance((1.0, 2.0, 1.0, 3.0, 1.0), (1.0, 1.5, 2.5), bandwidth=40.0, latency=0.01)
    ours = round_seconds(instance, make_plan(instance))
    for name in PLANNERS:
        assert ours <= round_seconds(instance, make_plan(instance, name)) * (1 + 1e-6), name


def test_a_slow_device_stays_idle_with_a_reason() -> None:
    plan = make_plan(make_instance(slower=(1.0, 1000.0)))
    assert plan.devices == ("a",)
    assert [idle.name for idle in plan.idle] == ["b"]
    assert plan.idle[0].reason == SLOWER_WITH_IT


@pytest.mark.parametrize("planner", ["edgeswarm", "pipeline"])
def test_a_device_whose_memory_holds_no_layer_says_so(planner: str) -> None:
    """A layer takes 300 bytes with its gradient and the optimizer's state, and saves 50 of a sample."""
    roomy, tight = make_instance(slower=(1.0, 1.0)).devices
    devices = (roomy, replace(tight, base_bytes=1 << 20, memory_bytes=(1 << 20) + 349))
    plan = make_plan(replace(make_instance(slower=(1.0, 1.0)), devices=devices), planner)
    (idle,) = plan.idle
    assert idle.reason == "its 1.0 MiB of memory hold no layer beside the 1.0 MiB that a worker takes by itself"


def whole(samples: int, device: int = 0) -> Candidate:
    return Candidate(samples, (CandidateStage(0, 4, (device,), (samples,), 1),))


def found(best: Candidate, *others: Candidate, mini_batch: int) -> Found:
    """The first of these that were simulated, as if it had been the fastest."""
    judge = Judge(SearchProblem(make_instance(slower=(1.0, 1.5), mini_batch=mini_batch)), budget=1e6)
    seconds = {each: judge.seconds(each) for each in (best, *others)}
    return Found(best, seconds[best], judge.schedule, seconds)


def test_micro_batches_of_one_size_are_preferred_where_they_are_hardly_slower() -> None:
    uneven = found(whole(43), whole(64), whole(32), mini_batch=128)
    even = of_one_size(uneven, 128)
    assert even.candidate == whole(64)
    assert even.seconds == pytest.approx(uneven.seconds)
    is_even = found(whole(32), whole(64), mini_batch=128)
    assert of_one_size(is_even, 128) is is_even
    # Those known are half as slow again.
    slower = found(whole(43), whole(64, device=1), mini_batch=128)
    assert of_one_size(slower, 128) is slower


def test_a_small_mini_batch_may_end_with_a_smaller_micro_batch() -> None:
    uneven = found(whole(5), whole(4), mini_batch=16)
    assert of_one_size(uneven, 16) is uneven


def test_the_micro_batch_asked_for_is_kept() -> None:
    assert make_plan(make_instance(slower=(1.0, 1.0)), micro_batch=3).micro_batch == 3
    assert make_plan(make_instance(slower=(1.0, 1.0), mini_batch=128), micro_batch=43).micro_batch == 43


def test_least_batches_are_respected() -> None:
    instance = make_instance(slower=(1.0, 1.0, 1.0), least_batch=3, mini_batch=16)
    plan = make_plan(instance)
    instance.validate_plan(plan)
    assert plan.too_few_samples(16, [3] * 4) == ""


@pytest.mark.parametrize("planner", ["edgeswarm", "pipeline"])
def test_an_epochs_last_round_leaves_no_replica_too_few_samples(planner: str) -> None:
    """Eight samples suit four devices with two each; of seven one would get a single one."""
    instance = with_rest(make_instance(slower=(1.0,) * 4, least_batch=2, mini_batch=8), 7)
    plan = make_plan(instance, planner)
    assert instance.too_few_samples(plan) == ""
    if planner == "edgeswarm":
        assert instance.too_few_samples(make_plan(with_rest(instance, 0)))


def test_a_device_far_away_changes_nothing_for_the_others() -> None:
    """It is so slow that it stays idle; its links take a fifth of a second one way, the others' a thousandth."""
    near = make_instance(slower=(1.0, 1.2, 1.5, 1e6), bandwidth=5_000.0)
    latencies = [[0.2 if 3 in (a, b) else 0.001 for b in range(4)] for a in range(4)]
    instance = replace(near, network=Network.of_pairs(latencies, near.network.bandwidth))
    assert SearchProblem(instance).latency == 0.001
    plan, without = make_plan(instance), make_plan(instance.only(["a", "b", "c"]))
    assert [idle.name for idle in plan.idle] == ["d"]
    assert round_seconds(instance, plan) <= round_seconds(instance, without) * 1.02


@pytest.mark.usefixtures("full_search")
def test_a_slow_data_source_goes_to_the_device_with_the_better_link() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0), memory_bytes=[10**9] * 2, bandwidth=0.1)
    source = DataSource((1.0, 50.0), 50.0)
    plan = plan_by_search(replace(instance, data_source=source))
    assert plan is not None
    assert plan.stages[0].devices == ("b",)


@pytest.mark.parametrize("devices", [20])
def test_many_devices_are_planned(devices: int) -> None:
    instance = make_instance((1.0,) * 12, tuple(1.0 + place % 3 for place in range(devices)), bandwidth=500.0)
    plan = plan_by_search(instance, effort=Effort(budget=40_000.0, wide=4))
    assert plan is not None
    instance.validate_plan(plan)
    assert len(plan.devices) > 3


def in_rooms(rooms: int) -> PlanningInstance:
    """Ten devices each, of three speeds; links between rooms have a tenth of the bandwidth."""
    count = 10 * rooms
    instance = make_instance(
        (1.0,) * 6, tuple(1.0 + 2 * (place % 3) for place in range(count)), param_bytes=2_000_000, mini_batch=512
    )
    rates = tuple(tuple(1e7 if a // 10 == b // 10 else 1e6 for b in range(count)) for a in range(count))
    return replace(instance, network=Network(0.0, rates))


@pytest.mark.soak
def test_more_rooms_make_no_plan_slower() -> None:
    effort = Effort(budget=40_000.0, wide=4)
    few_rooms, many_rooms = (plan_by_search(in_rooms(rooms), effort=effort) for rooms in (2, 5))
    assert few_rooms is not None
    assert many_rooms is not None
    assert few_rooms.predicted is not None
    assert many_rooms.predicted is not None
    assert many_rooms.predicted.round_seconds <= 1.02 * few_rooms.predicted.round_seconds
