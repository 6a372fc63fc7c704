"""`make_plan`: whole plans of every planner, and errors that say what is short."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner import planners
from edgeswarm_coordinator.planner.cost_model import held_bytes, plan_memory_bytes
from edgeswarm_coordinator.planner.micro_batches import micro_batch_sizes
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan, sizes_to_try
from edgeswarm_coordinator.planner.prediction import predict
from edgeswarm_coordinator.planner.shortage import one_stage_shortage
from edgeswarm_coordinator.simulator.simulate import round_seconds

from .instances import PLENTY, instances, make_instance, whole_instances

THREE = make_instance((1.0, 2.0, 1.0, 2.0), (1.0, 2.0, 4.0))


def check_whole(plan: Plan, instance: PlanningInstance) -> None:
    """It is one for the instance, fits memory, names every device, and predicts what the cost model says."""
    instance.validate_plan(plan)
    assert plan.predicted == predict(instance, plan)
    assert plan.predicted is not None
    for name, held in plan.predicted.memory_bytes.items():
        assert held <= instance.devices[instance.index_of[name]].memory_bytes
    assert sorted([*plan.devices, *(idle.name for idle in plan.idle)]) == sorted(instance.device_names)
    assert all(idle.reason for idle in plan.idle)
    assert Plan.from_json(plan.to_json()) == plan


def plan_or_error(instance: PlanningInstance, planner: str) -> tuple[Plan | None, EdgeswarmError | None]:
    try:
        return make_plan(instance, planner), None
    except EdgeswarmError as error:
        return None, error


@pytest.mark.thorough
@settings(max_examples=4, deadline=None, derandomize=True)
@given(instance=whole_instances(), chance=st.randoms())
def test_the_order_of_the_list_changes_no_whole_plan(instance: PlanningInstance, chance: random.Random) -> None:
    names = list(instance.device_names)
    chance.shuffle(names)
    (one, error), (other, other_error) = (plan_or_error(each, "edgeswarm") for each in (instance, instance.only(names)))
    if one is None or other is None:
        assert (error is None) == (other_error is None)
        return
    assert (other.micro_batch, other.schedule, other.stages) == (one.micro_batch, one.schedule, one.stages)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None, derandomize=True)
@given(instance=whole_instances())
def test_more_memory_or_faster_links_make_no_whole_plan_slower(instance: PlanningInstance) -> None:
    plan, _ = plan_or_error(instance, "edgeswarm")
    assume(plan is not None)
    assert plan is not None
    before = round_seconds(instance, plan)
    devices = tuple(replace(device, memory_bytes=2 * device.memory_bytes) for device in instance.devices)
    rows = tuple(tuple(2 * rate for rate in row) for row in instance.network.bandwidth)
    for better in (
        replace(instance, devices=devices),
        replace(instance, network=replace(instance.network, bandwidth=rows)),
    ):
        assert round_seconds(better, make_plan(better)) <= before * 1.02


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(instance=whole_instances(), planner=st.sampled_from(sorted(PLANNERS)))
def test_every_planner_gives_a_whole_plan_or_says_why_not(instance: PlanningInstance, planner: str) -> None:
    plan, error = plan_or_error(instance, planner)
    if plan is not None:
        check_whole(plan, instance)
    else:
        assert error is not None
        assert error.code is ErrorCode.NO_PLAN_FITS
        assert "too little" in error.message
        assert ": -" not in error.message
        assert error.remedy


@settings(max_examples=60, deadline=None)
@given(
    instance=instances(uniform_links=False),
    planner=st.sampled_from(["single", "data-parallel"]),
    lacking=st.permutations([1, 2, 30, 200]),
)
def test_the_memory_that_is_said_to_lack_helps(instance: PlanningInstance, planner: str, lacking: list[int]) -> None:
    """Each device lacks some bytes for the whole model, and no two of them as many."""
    smallest = micro_batch_sizes(instance.training.mini_batch)[-1]
    whole = held_bytes(
        instance,
        first_layer=0,
        end_layer=instance.model.layer_count,
        samples=smallest,
        in_flight=1,
        micro_batches=1,
    )
    assume(whole > max(lacking))
    devices = tuple(
        replace(device, memory_bytes=whole - less) for device, less in zip(instance.devices, lacking, strict=False)
    )
    short = replace(instance, devices=devices)
    plan, _ = plan_or_error(short, planner)
    assume(plan is None)
    (lack,) = one_stage_shortage(short, samples=smallest)
    assert lack.device.memory_bytes == max(device.memory_bytes for device in devices)
    enough = tuple(
        replace(device, memory_bytes=device.memory_bytes + lack.lacking_bytes) if device == lack.device else device
        for device in devices
    )
    assert make_plan(replace(short, devices=enough), planner).devices == (lack.device.name,)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(instance=instances(uniform_links=False))
def test_where_a_baseline_fits_asteroid_fits(instance: PlanningInstance) -> None:
    plans = [plan_or_error(instance, name)[0] for name in ("data-parallel", "pipeline", "single")]
    if any(plans):
        assert plan_or_error(instance, "asteroid")[0] is not None


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(instance=whole_instances())
def test_nobody_is_faster_than_the_exhaustive_search(instance: PlanningInstance) -> None:
    plans = {name: plan for name in PLANNERS if (plan := plan_or_error(instance, name)[0]) is not None}
    seconds = {name: round_seconds(instance, plan) for name, plan in plans.items()}
    assert all(seconds["exhaustive"] <= other * (1 + 1e-5) for other in seconds.values())


@functools.cache
def plan_of_three(planner: str) -> Plan:
    return make_plan(THREE, planner)


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_plans_of_three_devices(planner: str) -> None:
    plan = plan_of_three(planner)
    check_whole(plan, THREE)
    assert plan.planner == planner


def test_data_parallel_is_one_stage_over_all_in_proportion_to_speed() -> None:
    plan = make_plan(THREE, "data-parallel", micro_batch=14)
    assert plan.stages[0].shares == {"a": 8, "b": 4, "c": 2}
    assert (plan.micro_batches, plan.last_micro_batch, plan.backup) == (2, 2, {})


def test_pipeline_has_one_device_a_stage_and_backups_on_the_next() -> None:
    plan = plan_of_three("pipeline")
    assert [stage.devices for stage in plan.stages] == [("a",), ("b",), ("c",)]
    assert plan.backup == {0: "b", 1: "c", 2: "a"}


def test_single_takes_the_fastest_device_that_holds_the_model() -> None:
    assert plan_of_three("single").devices == ("a",)
    small_first = make_instance((1.0, 2.0), (1.0, 2.0, 4.0), [100, PLENTY, PLENTY])
    plan = make_plan(small_first, "single")
    assert plan.devices == ("b",)
    assert [idle.name for idle in plan.idle] == ["a", "c"]


def test_a_replicated_stage_needs_no_backup_elsewhere() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), param_bytes=0, output_bytes=10**6, bandwidth=1.0)
    plan = make_plan(instance, micro_batch=2)
    assert [stage.replicated for stage in plan.stages] == [True]
    assert plan.backup == {}


def test_asteroid_is_no_slower_than_its_baselines_with_less_freedom() -> None:
    rounds = {name: plan_of_three(name).predicted for name in PLANNERS}
    assert all(predicted is not None for predicted in rounds.values())
    asteroid = rounds["asteroid"]
    assert asteroid is not None
    assert all(asteroid.round_seconds <= other.round_seconds * 1.011 for other in rounds.values() if other)


@pytest.mark.usefixtures("full_search")
def test_fewer_in_flight_where_the_papers_number_fits_no_memory() -> None:
    # A layer holds 50 bytes for each micro-batch: not even one layer with 3 in flight fits in 110 bytes, with 2 it does.
    instance = make_instance((1.0,) * 3, (1.0, 1.0), [110, 100], param_bytes=0, saved_bytes=50)
    plan = make_plan(instance, micro_batch=1)
    assert [stage.in_flight for stage in plan.stages] == [2, 1]
    check_whole(plan, instance)


def test_a_plan_between_the_first_cut_points_is_found_where_memory_holds_nothing_else() -> None:
    # 40 layers of 300 bytes and 50 for each sample: either device holds 20 of them with one sample in flight, not 21.
    instance = make_instance((1.0,) * 40, (1.0, 1.0), [7_300, 7_300])
    for planner in ("pipeline", "edgeswarm"):
        plan = make_plan(instance, planner)
        check_whole(plan, instance)
        assert [stage.end_layer for stage in plan.stages] == [20, 40]


@pytest.mark.parametrize("planner", ["data-parallel", "asteroid", "edgeswarm", "exhaustive"])
def test_links_and_the_all_reduce_need_memory_too(planner: str) -> None:
    # Alone, each device would hold its part of the samples; what the group's all-reduce holds comes on top of that.
    free = make_instance((1.0,) * 2, (1.0, 1.0), [1_100, 1_100], mini_batch=8)
    instance = replace(free, training=replace(free.training, reduce_bytes=300, peer_bytes=200))
    needed = plan_memory_bytes(instance, make_plan(free, planner))
    assert planner == "edgeswarm" or max(needed.values()) > 1_100
    check_whole(make_plan(instance, planner), instance)


@pytest.mark.parametrize("planner", ["data-parallel", "dapple", "pipedream", "asteroid", "edgeswarm"])
def test_a_plan_that_lacks_a_little_for_its_links_is_not_found_again(planner: str) -> None:
    """What the links take is far more than what is lacking: a device that holds just that more would be given as much again."""
    free = make_instance((1.0,) * 2, (1.0, 1.0, 1.0), [1_100] * 3, mini_batch=8)
    training = replace(free.training, reduce_bytes=300, peer_bytes=0)
    needed = plan_memory_bytes(replace(free, training=training), make_plan(free, "data-parallel"))
    devices = tuple(replace(device, memory_bytes=needed[device.name] - 10) for device in free.devices)
    instance = replace(free, training=training, devices=devices)
    check_whole(make_plan(instance, planner), instance)


def test_no_plan_fits_names_the_device_and_what_it_lacks() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0), [3000, 2000], param_bytes=1000, saved_bytes=0)
    with pytest.raises(EdgeswarmError) as caught:
        make_plan(instance, micro_batch=2)
    assert caught.value.code is ErrorCode.NO_PLAN_FITS
    # The best cut gives each device two layers of 3000 bytes with gradients and momentum.
    assert "layers 2 to 3" in caught.value.message
    assert "give b layers" in caught.value.message
    assert "3.9 KiB too little" in caught.value.message
    assert "more free memory: 3.9 KiB on b, 2.9 KiB on a" in caught.value.remedy
    assert "micro-batch smaller than 2" in caught.value.remedy


def test_a_baseline_that_does_not_fit_points_to_one_that_cuts_the_model() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0), [900, 900], param_bytes=100, saved_bytes=0)
    with pytest.raises(EdgeswarmError, match="the whole model") as caught:
        make_plan(instance, "single")
    assert "--planner edgeswarm" in caught.value.remedy
    check_whole(make_plan(instance), instance)


def test_least_batch_is_respected_in_shares_and_in_the_rest() -> None:
    instance = make_instance((1.0,) * 2, (1.0, 1.0, 9.0), least_batch=3, mini_batch=14)
    plan = make_plan(instance)
    check_whole(plan, instance)
    with pytest.raises(EdgeswarmError, match="at least 3 samples at once"):
        make_plan(instance, micro_batch=6)
    with pytest.raises(EdgeswarmError, match="at least 3 samples at once"):
        make_plan(make_instance(least_batch=3, mini_batch=2))


def test_a_size_whose_rest_replicas_cannot_split_is_passed_over() -> None:
    """Two shares of 2 are no way to split the 3 samples that micro-batches of 4 leave of 31."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0), least_batch=2, mini_batch=31)
    check_whole(make_plan(instance, "data-parallel"), instance)
    check_whole(make_plan(instance, micro_batch=4), instance)
    with pytest.raises(EdgeswarmError, match="in a round of 31 its replicas can't split") as caught:
        make_plan(instance, "data-parallel", micro_batch=4)
    assert caught.value.code is ErrorCode.NO_PLAN_FITS
    assert "--planner edgeswarm" in caught.value.remedy


def test_where_no_plan_fits_no_planner_is_asked_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_arguments: object, **_options: object) -> NoReturn:
        raise AssertionError("a planner was asked whose work is too much")

    monkeypatch.setattr(planners, "MOST_WORK", 0)
    monkeypatch.setattr(planners, "search", asked)
    monkeypatch.setattr(planners, "longest_pipeline", asked)
    instance = make_instance((1.0,) * 4, (1.0, 1.0), [3000, 2000], param_bytes=1000, saved_bytes=0)
    with pytest.raises(EdgeswarmError, match="too little"):
        make_plan(instance, micro_batch=2)


def test_micro_batch_that_cannot_be() -> None:
    with pytest.raises(EdgeswarmError, match="batch size is 16") as caught:
        make_plan(THREE, micro_batch=17)
    assert caught.value.code is ErrorCode.PLAN_INVALID
    with pytest.raises(ValueError, match="no planner 'best'"):
        make_plan(THREE, "best")


@given(mini_batch=st.integers(1, 3000), least=st.integers(1, 4))
def test_micro_batch_sizes(mini_batch: int, least: int) -> None:
    sizes = micro_batch_sizes(mini_batch, least_batch=least)
    assert len(sizes) <= 12
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert all(least <= size and (mini_batch % size == 0 or mini_batch % size >= least) for size in sizes)
    assert (mini_batch in sizes) == (mini_batch >= least)


def test_micro_batch_sizes_of_a_prime_leave_a_rest() -> None:
    assert micro_batch_sizes(13) == (13, 8, 4, 2, 1)
    assert micro_batch_sizes(128) == (128, 64, 32, 16, 8, 4, 2, 1)
    # Each power of two leaves one sample, which a layer that needs two can't have.
    assert micro_batch_sizes(17, least_batch=2) == (17, 15, 7, 3)


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_mini_batch_that_is_too_small_for_a_layer_is_said_to_be(micro_batch: int | None) -> None:
    with pytest.raises(EdgeswarmError, match="batch size is 1, but a layer of the model needs at least 2") as caught:
        sizes_to_try(1, micro_batch, least_batch=2)
    assert "Set batch_size to 2" in caught.value.remedy


@pytest.mark.parametrize(
    ("stages", "seconds", "is_taken"), [(2, 9.75, True), (2, 9.85, False), (2, 10.5, False), (1, 9.99, True)]
)
def test_of_plans_that_are_about_as_fast_the_one_stage_is_taken(
    monkeypatch: pytest.MonkeyPatch, stages: int, seconds: float, is_taken: bool
) -> None:
    """What the search found is taken where several stages are two hundredths faster than one in passes, which takes ten seconds;
    another one stage where it is faster at all.
    """
    in_passes = expected_in(make_plan(THREE, "data-parallel"), 10.0)
    found = expected_in(make_plan(THREE, "pipeline" if stages > 1 else "data-parallel"), seconds)
    assert len(found.stages) >= stages
    monkeypatch.setattr(planners, "plan_in_passes", lambda _: in_passes)
    monkeypatch.setattr(planners, "plan_by_search", lambda *_, **__: found)
    whole = PLANNERS["edgeswarm"].whole
    assert whole is not None
    chosen = whole(THREE, sizes_to_try(THREE.training.mini_batch, None, least_batch=1))
    assert chosen is (found if is_taken else in_passes)


def test_one_stage_on_fewer_devices_has_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = expected_in(make_plan(THREE, "single"), 10.0)
    found = expected_in(make_plan(THREE, "pipeline"), 9.99)
    monkeypatch.setattr(planners, "plan_in_passes", lambda _: alone)
    monkeypatch.setattr(planners, "plan_by_search", lambda *_, **__: found)
    whole = PLANNERS["edgeswarm"].whole
    assert whole is not None
    assert whole(THREE, sizes_to_try(THREE.training.mini_batch, None, least_batch=1)) is found


def expected_in(plan: Plan, seconds: float) -> Plan:
    assert plan.predicted is not None
    return replace(plan, predicted=replace(plan.predicted, round_seconds=seconds))
