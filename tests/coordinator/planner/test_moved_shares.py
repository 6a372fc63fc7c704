"""Shares that follow speed: by hand where curves are lines, and never out of memory or off the plan's layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.moved_shares import expected_seconds, moved_shares, stretched
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.simulator.simulate import round_seconds

from .instances import instances, make_instance, whole_instances, with_rest, with_weights_apart
from .test_planners import plan_or_error


def one_stage(shares: dict[str, int], *, micro_batches: int = 1, last: int | None = None) -> Plan:
    stage = Stage(0, 2, shares, 1)
    return Plan("by hand", sum(shares.values()), micro_batches, (stage,), last_micro_batch=last)


def shown(instance: PlanningInstance, plan: Plan, factors: dict[str, float]) -> dict[str, float]:
    """Seconds of a round, by device, where each takes so many times as long as its curves say."""
    found = {}
    for stage in plan.stages:
        for device, share in stage.shares.items():
            profile = instance.profile_of(device)
            layers = (stage.first_layer, stage.end_layer)
            seconds = plan.micro_batches * (profile.forward(share, *layers) + profile.backward(share, *layers))
            found[device] = factors.get(device, 1.0) * seconds
    return found


def test_samples_go_from_the_one_that_is_slower_than_its_curves() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12)
    plan = one_stage({"a": 6, "b": 6})
    moved = moved_shares(instance, plan, shown(instance, plan, {"b": 2.0}))
    assert moved is not None
    assert moved.plan.stages[0].shares == {"a": 8, "b": 4}
    # 12 samples on each side of 6 s a sample: 72 s with b twice as slow, then 48 s.
    assert moved.gain == pytest.approx(1 / 3)
    assert moved.plan.predicted is not None
    assert moved.plan.predicted.round_seconds == pytest.approx(48.0)


def test_small_differences_are_moved_half_of_the_way() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=88)
    plan = one_stage({"a": 44, "b": 44})
    moved = moved_shares(instance, plan, shown(instance, plan, {"b": 1.2}))
    assert moved is not None
    # 48 and 40 would take equally long.
    assert moved.plan.stages[0].shares == {"a": 46, "b": 42}
    assert moved.gain == pytest.approx(1 - 42 / 44)


def test_what_is_lost_half_way_is_given_to_those_who_get_more() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0, 1.0), mini_batch=300)
    plan = one_stage({"a": 100, "b": 100, "c": 100})
    moved = moved_shares(instance, plan, shown(instance, plan, {"b": 1.1}))
    assert moved is not None
    assert sum(moved.plan.stages[0].shares.values()) == 300
    assert moved.plan.stages[0].shares["a"] >= moved.plan.stages[0].shares["c"] > 100 > moved.plan.stages[0].shares["b"]


def test_nothing_moves_where_all_are_as_fast_as_their_curves() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 2.0), mini_batch=12)
    plan = one_stage({"a": 8, "b": 4})
    assert moved_shares(instance, plan, shown(instance, plan, {})) is None
    # All slower alike changes the round, not the shares.
    assert moved_shares(instance, plan, shown(instance, plan, {"a": 1.5, "b": 1.5})) is None


def test_a_smaller_last_micro_batch_counts() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=16)
    plan = one_stage({"a": 6, "b": 6}, micro_batches=2, last=4)
    # 6 and 2 samples of 6 s each.
    as_expected = stretched(instance, plan, {"a": 48.0, "b": 96.0})
    assert as_expected.profile_of("a").forward(1, 0, 2) == pytest.approx(2.0)
    assert as_expected.profile_of("b").forward(1, 0, 2) == pytest.approx(4.0)


def test_what_coming_apart_takes_is_counted_once() -> None:
    """Backwards take 1.25 times as long apart, which is no slowness that the devices showed."""
    instance = with_weights_apart(make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12), 0.5, rest=0.75)
    plan = Plan("by hand", 4, 3, (Stage(0, 1, {"a": 4}, 2), Stage(1, 2, {"b": 4}, 1)), schedule="zero-bubble")
    profile = instance.profile_of("a")
    apart = {
        stage.devices[0]: 3 * (profile.forward(4, *layers) + sum(profile.backward_apart(4, *layers)))
        for stage in plan.stages
        for layers in [(stage.first_layer, stage.end_layer)]
    }
    assert expected_seconds(instance, plan) == pytest.approx(apart)
    shown_as_planned = stretched(instance, plan, apart)
    assert round_seconds(shown_as_planned, plan) == pytest.approx(round_seconds(instance, plan))
    # Samples are shared by the whole.
    whole = sum(profile.backward_apart(4, 0, 1))
    assert shown_as_planned.profile_of("a").backward(4, 0, 1) == pytest.approx(whole)


def test_a_stage_that_waits_for_another_keeps_its_shares() -> None:
    instance = make_instance((9.0, 1.0), (1.0, 1.0, 1.0), mini_batch=12)
    stages = (Stage(0, 1, {"a": 4}, 2), Stage(1, 2, {"b": 2, "c": 2}, 1))
    plan = Plan("by hand", 4, 3, stages)
    assert moved_shares(instance, plan, shown(instance, plan, {"c": 1.2})) is None


def test_memory_holds_samples_back() -> None:
    # Parameters, gradients and optimizer 600 bytes, 100 of saved activations and more a sample.
    roomy = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12)
    plan = one_stage({"a": 6, "b": 6})
    needed = plan_memory_bytes(roomy, one_stage({"a": 7, "b": 5}))["a"]
    tight = replace(roomy, devices=(replace(roomy.devices[0], memory_bytes=needed), roomy.devices[1]))
    moved = moved_shares(tight, plan, shown(tight, plan, {"b": 2.0}))
    assert moved is not None
    assert moved.plan.stages[0].shares == {"a": 7, "b": 5}


@pytest.mark.parametrize(("most", "expected"), [(8, {"a": 7, "b": 5}), (7, None)])
def test_so_do_links_and_the_all_reduce(most: int, expected: dict[str, int] | None) -> None:
    """By layers alone a holds `most` samples, and a byte is missing for what its group's all-reduce holds beside them."""
    plain = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12)
    roomy = replace(plain, training=replace(plain.training, reduce_bytes=90))
    needed = plan_memory_bytes(roomy, one_stage({"a": most, "b": 12 - most}))["a"]
    tight = replace(roomy, devices=(replace(roomy.devices[0], memory_bytes=needed - 1), roomy.devices[1]))
    plan = one_stage({"a": 6, "b": 6})
    moved = moved_shares(tight, plan, shown(tight, plan, {"b": 2.0}))
    assert (moved and moved.plan.stages[0].shares) == expected


def test_so_do_frames_that_wait() -> None:
    """By a formula b holds six samples' frames beside its layers; in a round three inputs lie there, before the slower stage."""
    plain = make_instance((1.0, 4.0), (1.0, 1.0, 1.0), saved_bytes=0, output_bytes=100, mini_batch=64)
    roomy = replace(plain, training=replace(plain.training, frames_held=1))
    plan = Plan("by hand", 8, 8, (Stage(0, 1, {"a": 8}, 4), Stage(1, 2, {"b": 4, "c": 4}, 1)))
    seconds = shown(roomy, plan, {"b": 1 / 3})
    moved = moved_shares(roomy, plan, seconds)
    assert moved is not None
    assert moved.plan.stages[1].shares == {"b": 6, "c": 2}
    now = with_prediction(stretched(roomy, plan, seconds), plan).predicted
    assert now is not None
    needed = now.memory_bytes["b"]
    assert plan_memory_bytes(roomy, moved.plan)["b"] < needed
    a, b, c = roomy.devices
    tight = replace(roomy, devices=(a, replace(b, memory_bytes=needed), c))
    assert moved_shares(tight, plan, seconds) is None
    # Where more waits than there is room for, whatever the shares, they may move as long as no more does.
    tighter = replace(roomy, devices=(a, replace(b, memory_bytes=needed - 1), c))
    slower = moved_shares(tighter, plan, shown(tighter, plan, {"b": 3.0}))
    assert slower is not None
    assert slower.plan.stages[1].shares == {"b": 2, "c": 6}


def test_kernels_of_earlier_plans_are_in_its_prediction() -> None:
    plain = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12)
    layers = tuple(replace(layer, kernel_bytes=1000) for layer in plain.model.layers)
    instance = replace(plain, model=replace(plain.model, layers=layers))
    plan = one_stage({"a": 6, "b": 6})
    moved = moved_shares(instance, plan, shown(instance, plan, {"b": 2.0}), earlier=[one_stage({"a": 5, "b": 7})])
    assert moved is not None
    assert moved.plan.predicted is not None
    alone = with_prediction(instance, moved.plan).predicted
    assert alone is not None
    more = {name: held - alone.memory_bytes[name] for name, held in moved.plan.predicted.memory_bytes.items()}
    assert more == {"a": 4000, "b": 4000}


def test_shares_that_cannot_split_the_last_micro_batch_are_none() -> None:
    """Of 7 samples (6, 3) leaves 5 and 2, and the first has room for one more only."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0), least_batch=3, mini_batch=16)
    plan = one_stage({"a": 5, "b": 4}, micro_batches=2, last=7)
    instance.validate_plan(plan)
    assert moved_shares(instance, plan, shown(instance, plan, {"b": 2.0})) is None


def test_nor_are_those_that_cannot_split_an_epochs_smaller_last_round() -> None:
    """A layer needs three samples. (4, 3, 3) can split 6 of them, and (3, 3, 4) can't."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0, 1.0), least_batch=3, mini_batch=10)
    plan = one_stage({"a": 4, "b": 3, "c": 3})
    assert not plan.too_few_samples(6, instance.model.least_batches)
    seconds = shown(instance, plan, {"c": 0.5})
    moved = moved_shares(instance, plan, seconds)
    assert moved is not None
    assert moved.plan.stages[0].shares == {"a": 3, "b": 3, "c": 4}
    assert moved.plan.too_few_samples(6, instance.model.least_batches)
    assert moved_shares(with_rest(instance, 6), plan, seconds) is None


def test_nobody_is_left_without_samples() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=4)
    plan = one_stage({"a": 3, "b": 1})
    assert moved_shares(instance, plan, shown(instance, plan, {"b": 50.0})) is None


@pytest.mark.thorough
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_what_moves_is_faster_holds_memory_and_keeps_the_stages(data: st.DataObject) -> None:
    instance = data.draw(st.one_of(instances(), whole_instances()))
    plan, _ = plan_or_error(instance, "edgeswarm")
    if plan is None:
        return
    factors = {device: data.draw(st.floats(0.5, 2.0)) for device in plan.devices}
    seconds = shown(instance, plan, factors)
    moved = moved_shares(instance, plan, seconds)
    if moved is None:
        return
    instance.validate_plan(moved.plan)
    assert 0 < moved.gain < 1
    by_speed = stretched(instance, plan, seconds)
    assert round_seconds(by_speed, moved.plan) < round_seconds(by_speed, plan)
    memory = plan_memory_bytes(instance, moved.plan)
    assert all(memory[device.name] <= device.memory_bytes for device in instance.devices if device.name in memory)
    for old, new in zip(plan.stages, moved.plan.stages, strict=True):
        assert (old.first_layer, old.end_layer, old.devices, old.in_flight) == (
            *(new.first_layer, new.end_layer, new.devices, new.in_flight),
        )
