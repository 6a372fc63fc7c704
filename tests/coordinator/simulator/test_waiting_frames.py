"""What lies between stages that don't keep pace, by timelines that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.prediction import predict
from edgeswarm_coordinator.simulator.simulate import simulate

from .plans import make_instance, make_plan, planned

FRAME = 10  # bytes at each cut


def counted(instance: PlanningInstance, frames_held: int = 1) -> PlanningInstance:
    return replace(instance, training=replace(instance.training, frames_held=frames_held))


def frames(instance: PlanningInstance, plan: Plan) -> dict[str, float]:
    """By device, in frames of one micro-batch."""
    return {name: held / FRAME for name, held in simulate(counted(instance), plan).frame_bytes.items()}


def test_inputs_lie_with_a_stage_that_takes_longer() -> None:
    """a: 1 + 1 s, b: 2 + 2 s, K = 3 and 1.

    a   F0 F1 F2 .  .  B0 F3 .  .  .  B1 ...
    b      F0 F0 B0 B0 F1 F1 B1 B1 F2 F2 ...
    """
    instance = make_instance([(1.0, 1.0), (2.0, 2.0)], devices=2, mini_batch=6, cut_bytes=FRAME, saved_bytes=100)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=6)
    # While b has one in flight, two others of a's three have come; one more may, in a round that isn't like the others.
    assert frames(instance, plan) == {"a": 0.0, "b": 2.0 + 1.0}


def test_gradients_lie_with_a_stage_that_takes_longer() -> None:
    """a: 2 + 2 s, b: 0.5 + 0.5 s: b answers while a computes something else.

    a   F0 F0 F0 F0 F1 F1 F1 F1 B0 B0 B0 B0 F2 ...      half a second each
    b               F0 B0       F1 B1
    """
    instance = make_instance([(2.0, 2.0), (0.5, 0.5)], devices=2, mini_batch=6, cut_bytes=FRAME, saved_bytes=100)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=6)
    assert frames(instance, plan) == {"a": 1.0, "b": 1.0}


def test_what_was_computed_waits_for_a_slow_link() -> None:
    """A frame takes 4 s, a forward 1: of three in flight the first is under way and two wait, but for what frees places."""
    instance = make_instance(
        [(1.0, 1.0), (1.0, 1.0)], devices=2, mini_batch=6, cut_bytes=FRAME, saved_bytes=100, bandwidth=FRAME / 4
    )
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=6)
    assert frames(instance, plan)["a"] == 3.0


def test_where_an_instance_counts_none_there_are_none() -> None:
    instance = make_instance([(1.0, 1.0), (2.0, 2.0)], devices=2, mini_batch=6, cut_bytes=FRAME, saved_bytes=100)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=6)
    told = simulate(instance, plan, timeline=True)
    assert told.frame_bytes == {}
    assert told.memory["b"].peak_bytes == plan_memory_bytes(instance, plan)["b"]


def test_the_prediction_has_them_whatever_is_in_flight() -> None:
    """b's K of 3 isn't reached in these rounds: the simulated peak has what is there, the prediction what may be."""
    instance = counted(
        make_instance([(2.0, 2.0), (1.0, 1.0)], devices=2, mini_batch=6, cut_bytes=FRAME, saved_bytes=100)
    )
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 3), micro_batches=6)
    told, predicted = simulate(instance, plan, timeline=True), predict(instance, plan)
    assert predicted.memory_bytes["b"] == 3 * 100 + FRAME
    assert told.memory["b"].peak_bytes == 1 * 100 + FRAME
    assert told.memory["a"].peak_bytes == predicted.memory_bytes["a"] == 3 * 100 + 2 * FRAME
    assert max(held for _, held in told.memory["a"].over_time) == told.memory["a"].peak_bytes


def test_of_a_zero_bubble_the_last_stage_holds_what_weights_wait_for() -> None:
    """a: 1 + 1 s, b: 1 + 1 s, half of each backward for weights; K = 3 and 2.

    b   F0 B B F1 B B W0 ...
    """
    plain = make_instance(
        [(1.0, 2.0), (1.0, 2.0)], devices=2, mini_batch=4, cut_bytes=FRAME, saved_bytes=100, apart=(0.5, 0.5)
    )
    layers = tuple(replace(layer, waiting_bytes=30) for layer in plain.model.layers)
    instance = replace(plain, model=replace(plain.model, layers=layers))
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 2), micro_batches=4, schedule="zero-bubble")
    told, predicted = simulate(instance, plan, timeline=True), predict(instance, plan)
    assert predicted.memory_bytes["b"] == told.memory["b"].peak_bytes == 100 + 30
    assert {held for _, held in told.memory["b"].over_time} == {0, 30, 60, 100, 130}
    assert told.memory["a"].peak_bytes <= predicted.memory_bytes["a"] == 3 * 100


@settings(max_examples=60, deadline=None)
@given(planned())
def test_memory_over_time_is_never_more_than_what_is_predicted(drawn: tuple[PlanningInstance, Plan]) -> None:
    instance, plan = counted(drawn[0]), drawn[1]
    told, predicted = simulate(instance, plan, timeline=True), predict(instance, plan)
    for name, memory in told.memory.items():
        assert min(level for _, level in memory.over_time) >= 0
        assert memory.peak_bytes <= predicted.memory_bytes[name] + 1
