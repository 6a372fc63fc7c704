"""Errors of curves become an error of the round: by hand, and never more than all curves off at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.layer_curves import ERROR_OF_A_DOUBLING
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm_coordinator.planner.explain import explain
from edgeswarm_coordinator.planner.prediction import predict, with_prediction
from edgeswarm_coordinator.planner.prediction_error import relative_error, stage_error, with_relative_error

from .instances import instances, make_instance
from .test_planners import plan_or_error


def with_errors(instance: PlanningInstance, **by_kind: tuple[tuple[float, ...], float]) -> PlanningInstance:
    """by_kind: layer_errors and sums_error of classes, "class-" left out of their names."""
    profiles = {
        f"class-{name}": replace(instance.profiles[f"class-{name}"], layer_errors=layers, sums_error=sums)
        for name, (layers, sums) in by_kind.items()
    }
    return replace(instance, profiles={**instance.profiles, **profiles})


def one_stage(samples: int, *, layers: int) -> Plan:
    return Plan(planner="by hand", micro_batch=samples, micro_batches=1, stages=(Stage(0, layers, {"a": samples}, 1),))


# --- one device: the round is its layers' seconds -------------------------------------------------------------------


def test_layers_with_curves_of_their_own_are_off_apart_from_one_another() -> None:
    instance = with_errors(make_instance((3.0, 4.0), (1.0,)), a=((0.1, 0.1), 0.0))
    expected = math.hypot(0.1 * 3, 0.1 * 4) / 7
    assert relative_error(instance, one_stage(16, layers=2)) == pytest.approx(expected)


def test_layers_of_one_curve_are_off_together() -> None:
    instance = with_errors(make_instance((2.0, 2.0), (1.0,)), a=((0.1, 0.1), 0.0))
    assert relative_error(instance, one_stage(16, layers=2)) == pytest.approx(0.1)


def test_what_whole_stages_showed_comes_on_top() -> None:
    instance = with_errors(make_instance((2.0, 2.0), (1.0,)), a=((0.03, 0.03), 0.04))
    assert relative_error(instance, one_stage(16, layers=2)) == pytest.approx(0.05)


def test_no_layer_that_takes_time() -> None:
    profile = DeviceProfile((1,), ((0.0, 1.0),), ((0.0, 1.0),), layer_errors=(0.5, 0.5), sums_error=0.02)
    assert stage_error(profile, first_layer=0, end_layer=1, samples=4) == 0.02


def test_beyond_what_was_measured_it_grows_with_each_doubling() -> None:
    instance = with_errors(make_instance((2.0, 2.0), (1.0,)), a=((0.1, 0.1), 0.0))
    for measured, error in ((16, 0.1), (32, 0.1), (4, math.hypot(0.1, 2 * ERROR_OF_A_DOUBLING))):
        profile = replace(instance.profiles["class-a"], largest_measured=(measured,) * 2)
        known = replace(instance, profiles={"class-a": profile})
        assert relative_error(known, one_stage(16, layers=2)) == pytest.approx(error)


# --- several devices ------------------------------------------------------------------------------------------------


def halves(samples: int = 16) -> Plan:
    """Two stages of two layers, one micro-batch: they never work at the same time."""
    stages = (Stage(0, 2, {"a": samples}, 1), Stage(2, 4, {"b": samples}, 1))
    return Plan(planner="by hand", micro_batch=samples, micro_batches=1, stages=stages)


def test_kinds_are_off_apart_from_one_another() -> None:
    instance = with_errors(make_instance((1.0, 1.0, 2.0, 2.0)), a=((), 0.3), b=((), 0.2))
    # A third of the round is a's, which is slow by 0.3 of it; two thirds are b's.
    assert relative_error(instance, halves()) == pytest.approx(math.hypot(0.3 / 3, 0.2 * 2 / 3), rel=1e-6)


def test_what_hides_behind_others_counts_for_nothing() -> None:
    side_by_side = Plan(planner="by hand", micro_batch=16, micro_batches=1, stages=(Stage(0, 4, {"a": 14, "b": 2}, 1),))
    instance = make_instance(param_bytes=0)
    assert relative_error(with_errors(instance, b=((), 0.5)), side_by_side) == pytest.approx(0.0)
    assert relative_error(with_errors(instance, a=((), 0.5)), side_by_side) == pytest.approx(0.5, rel=1e-6)


def test_of_two_that_decide_the_round_together_each_counts_by_half() -> None:
    halved = Plan(planner="by hand", micro_batch=16, micro_batches=1, stages=(Stage(0, 4, {"a": 8, "b": 8}, 1),))
    instance = with_errors(make_instance(param_bytes=0), a=((), 0.2), b=((), 0.2))
    assert relative_error(instance, halved) == pytest.approx(math.hypot(0.1, 0.1), rel=1e-6)


def test_nothing_is_said_where_nothing_is_known() -> None:
    instance = make_instance()
    assert relative_error(instance, halves()) is None
    assert relative_error(with_errors(instance, a=((0.0,) * 4, 0.0)), halves()) is None
    assert with_relative_error(instance, halves()).predicted is None
    plan = with_relative_error(instance, with_prediction(instance, halves()))
    assert plan.predicted == predict(instance, halves())
    assert "+-" not in explain(plan, instance).text


def test_a_person_reads_it_behind_the_seconds_and_a_document_keeps_it() -> None:
    instance = with_errors(make_instance(), a=((), 0.08), b=((), 0.0))
    plan = with_relative_error(instance, with_prediction(instance, halves()))
    text = explain(plan, instance).text
    assert "a round (+-4 %), " in text
    assert "+-4 %: by the scatter of measured compute times alone" in text
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert read.predicted is not None
    assert read.predicted.relative_error == pytest.approx(0.04, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(instance=instances(), error=st.floats(0.001, 0.5), planner=st.sampled_from(["data-parallel", "single"]))
def test_one_stage_is_off_by_its_curves_at_most(instance: PlanningInstance, error: float, planner: str) -> None:
    """Of pipelines that can't be said: a later arrival may change the order of what a device does for the better or worse."""
    plan = plan_or_error(instance, planner)[0]
    if plan is None:
        return
    unsure = replace(
        instance, profiles={kind: replace(each, sums_error=error) for kind, each in instance.profiles.items()}
    )
    used = {instance.devices[instance.index_of[name]].profile for name in plan.devices}
    said = relative_error(unsure, plan)
    assert said is not None
    assert 0 <= said <= error * math.sqrt(len(used)) * (1 + 1e-6)
    sure = {kind: each for kind, each in instance.profiles.items() if kind not in used}
    assert relative_error(replace(unsure, profiles={**unsure.profiles, **sure}), plan) == said
