"""The formulas against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.planner.cost_model import (
    Step,
    StepKind,
    dominant_step,
    evaluate,
    held_bytes,
    in_flight_limit,
    pairs_in_use,
    pipeline_steps,
    plan_memory_bytes,
    round_seconds,
    step_times,
)

from .instances import make_instance, with_weights_apart


def stage_steps(*times: tuple[float, float, float]) -> list[Step]:
    """(forward, backward, all_reduce) of stages; the links between them take no time."""
    steps: list[Step] = []
    for index, (forward, backward, all_reduce) in enumerate(times):
        if index:
            steps.append(Step(StepKind.LINK, index - 1, 0.0, 0.0))
        steps.append(Step(StepKind.STAGE, index, forward, backward, all_reduce))
    return steps


def test_three_equal_stages() -> None:
    """Every stage 1 forward and 1 backward, five micro-batches: the last stage never waits.

    stage 0  f0 f1 f2 f3 f4 b0 .  b1 .  b2 .  b3 .  b4 |     ends at 14
    stage 1  .  f0 f1 f2 b0 f3 b1 f4 b2 .  b3 .  b4          ends at 13
    stage 2  .  .  f0 b0 f1 b1 f2 b2 f3 b3 f4 b4             ends at 12
             0     2                             12
    """
    steps = stage_steps((1, 1, 0), (1, 1, 0), (1, 1, 0))
    assert dominant_step(steps, 5) == 4
    assert [(times.waiting, times.execution) for times in step_times(steps, 5)[::2]] == [(0, 14), (1, 12), (2, 10)]
    assert round_seconds(steps, 5) == 14


def test_a_slow_first_stage_with_an_all_reduce_behind() -> None:
    """Stage 0 takes 2 + 3 and then 4 for its all-reduce, stage 1 takes 1 + 1; three micro-batches.

    stage 0  f0 f0 f1 f1 f2 f2 b0 b0 b0 b1 b1 b1 b2 b2 b2 A A A A |     ends at 19
    stage 1  .  .  f0 b0 f1 b1 f2 b2
    """
    steps = stage_steps((2, 3, 4), (1, 1, 0))
    assert dominant_step(steps, 3) == 0
    times = step_times(steps, 3)
    assert (times[0].waiting, times[0].execution, times[0].all_reduce) == (0, 15, 4)
    # Eq 6, behind the dominant step: 15 less the 5 of stage 0.
    assert (times[2].waiting, times[2].execution) == (2, 10)
    assert round_seconds(steps, 3) == 19


def test_a_link_that_dominates() -> None:
    """Stage 1 + 1, link 3 + 3, stage 1 + 1, two micro-batches; a link carries one thing at a time.

    stage 0  f0 f1 .  .  .  .  .  .  .  .  .  b0 .  .  b1 |     ends at 14
    link     .  f0 f0 f0 f1 f1 f1 b0 b0 b0 b1 b1 b1
    stage 1  .  .  .  .  f0 b0 .  f1 b1
    """
    steps = [
        Step(StepKind.STAGE, 0, 1, 1),
        Step(StepKind.LINK, 0, 3, 3),
        Step(StepKind.STAGE, 1, 1, 1),
    ]
    assert dominant_step(steps, 2) == 1
    assert [(times.waiting, times.execution) for times in step_times(steps, 2)] == [(0, 14), (1, 12), (4, 6)]
    assert round_seconds(steps, 2) == 14


@given(count=st.integers(1, 6), rounds=st.integers(1, 40))
def test_in_flight_limit_is_the_number_of_steps_to_the_end(count: int, rounds: int) -> None:
    assert in_flight_limit(stages_to_end=count, micro_batches=rounds) == min(max(1, 2 * count - 1), rounds)
    assert in_flight_limit(stages_to_end=count, micro_batches=rounds, most=2) <= 2


def test_held_bytes_counts_weights_gradients_optimizer_and_activations() -> None:
    instance = make_instance(param_bytes=100, saved_bytes=50, optimizer_state=2.0)
    # two layers: 200 bytes of weights four times over, 100 bytes a sample for 3 samples of 5 micro-batches, 7 before all
    stage = {"first_layer": 1, "end_layer": 3, "samples": 3, "in_flight": 5, "micro_batches": 8, "base_bytes": 7}
    held = held_bytes(instance, **stage, passing=None)
    assert held == 4 * 200 + 3 * 5 * 100 + 7
    layers = tuple(replace(layer, kernel_bytes=10**place) for place, layer in enumerate(instance.model.layers))
    with_kernels = replace(instance, model=replace(instance.model, layers=layers))
    assert held_bytes(with_kernels, **stage, passing=None) == held + 110


def two_stage_plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "planner": "by hand",
        "micro_batch": 4,
        "micro_batches": 4,
        "stages": (Stage(0, 3, {"a": 3, "b": 1}, 3), Stage(3, 4, {"c": 4}, 1)),
    }
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def test_evaluate_a_hand_written_plan() -> None:
    instance = make_instance(
        slower=(1.0, 2.0, 1.0), param_bytes=100, output_bytes=10, bandwidth=20.0, latency=0.5, optimizer_state=1.0
    )
    predicted = evaluate(instance, two_stage_plan())
    first, last = predicted.stages
    # a: 3 samples * 3 layers * 1 s; b: 1 * 3 * 2 s; the slower of them, forward 1 part and backward 2
    assert (first.forward_seconds, first.backward_seconds) == (9, 18)
    # 40 bytes at 20 bytes/s and the latency; the ring: 2 transfers of 150 bytes
    assert first.send_seconds == 2.5
    assert first.all_reduce_seconds == pytest.approx(2 * (150 / 20 + 0.5))
    assert (last.forward_seconds, last.backward_seconds, last.all_reduce_seconds, last.send_seconds) == (4, 8, 0, 0)
    # four micro-batches of 27 s in stage 0, then its all-reduce
    assert predicted.round_seconds == pytest.approx(4 * 27 + 16)
    assert predicted.samples_per_second == pytest.approx(16 / 124)
    assert predicted.memory_bytes == {
        "a": 3 * 300 + 3 * 3 * 150,
        "b": 3 * 300 + 3 * 150,
        "c": 3 * 100 + 4 * 50,
    }
    assert predicted.dominant == "computing in stage 0 (a, b)"


def test_one_in_flight_is_one_after_the_other() -> None:
    instance = make_instance(slower=(1.0, 1.0, 1.0), latency=0.5)
    stages = (Stage(0, 2, {"a": 4}, 1), Stage(2, 4, {"b": 4}, 1))
    predicted = evaluate(instance, two_stage_plan(stages=stages))
    assert predicted.round_seconds == pytest.approx(4 * (24 + 24 + 1))
    assert "in flight" in predicted.dominant


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=4),
    latency=st.floats(0.0, 2.0),
    rounds=st.integers(1, 12),
)
def test_the_papers_in_flight_never_slows_a_pipeline(seconds: list[float], latency: float, rounds: int) -> None:
    instance = make_instance(seconds, (1.0,) * len(seconds), latency=latency)

    def priced(in_flight: int | None) -> float:
        stages = [
            Stage(index, index + 1, {name: 1}, in_flight or max(1, 2 * (len(seconds) - index) - 1))
            for index, name in enumerate(instance.device_names)
        ]
        return round_seconds(pipeline_steps(instance, stages), rounds)

    assert priced(None) == pytest.approx(priced(1000))
    assert priced(1) >= priced(None) * (1 - 1e-9)


def test_pairs_in_use_are_those_whose_samples_overlap() -> None:
    sender, receiver = Stage(0, 1, {"a": 3, "b": 1}, 1), Stage(1, 2, {"c": 2, "d": 2}, 1)
    assert pairs_in_use(sender, receiver) == [("a", "c"), ("a", "d"), ("b", "d")]


def test_evaluate_refuses_a_plan_of_another_model() -> None:
    with pytest.raises(EdgeswarmError) as caught:
        evaluate(make_instance((1.0,) * 7, (1.0, 1.0, 1.0)), two_stage_plan())
    assert caught.value.code is ErrorCode.PLAN_INVALID
    assert "7 layers" in caught.value.message


def test_the_last_stage_of_a_zero_bubble_holds_of_all_but_one_what_their_weights_wait_for() -> None:
    instance = make_instance(mini_batch=16)
    layers = tuple(replace(layer, waiting_bytes=20) for layer in instance.model.layers)
    known = replace(instance, model=replace(instance.model, layers=layers))
    stages = (Stage(0, 2, {"a": 4}, 4), Stage(2, 4, {"b": 4}, 3))
    at_once, apart = (Plan("by hand", 4, 4, stages, schedule=schedule) for schedule in ("1f1b", "zero-bubble"))
    full = plan_memory_bytes(known, at_once)
    assert plan_memory_bytes(known, apart) == {**full, "b": full["b"] - 2 * 4 * 2 * (50 - 20)}
    # Where nobody knows what waits.
    assert plan_memory_bytes(instance, apart) == plan_memory_bytes(instance, at_once) == full


def test_a_backward_apart_is_told_as_long_as_both_its_parts() -> None:
    instance = with_weights_apart(make_instance(mini_batch=8), 0.5, rest=0.75)
    stages = (Stage(0, 2, {"a": 4}, 2), Stage(2, 4, {"b": 4}, 1))
    at_once, apart = (
        evaluate(instance, Plan("by hand", 4, 2, stages, schedule=schedule)).stages[0]
        for schedule in ("1f1b", "zero-bubble")
    )
    assert apart.backward_seconds == pytest.approx(1.25 * at_once.backward_seconds)
    assert apart.forward_seconds == at_once.forward_seconds
