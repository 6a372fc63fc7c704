"""Parameters that several stages hold: their gradients go to the first of these stages, and the sum back."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.model_costs import TiedCosts
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.simulator.simulate import simulate
from edgeswarm_coordinator.simulator.tied_sums import TiedSum, tied_sums

from .plans import make_instance, make_plan

SIZE = 40


def tied(instance: PlanningInstance, *layers: int, size: int = SIZE) -> PlanningInstance:
    return replace(instance, model=replace(instance.model, tied=(TiedCosts(layers, size, size),)))


def test_two_stages_wait_for_the_sum() -> None:
    """A sample, a second each way in each stage; then 40 bytes at 10 a second, to the first stage and back."""
    plain = make_instance(
        [(1.0, 1.0)] * 2, devices=2, mini_batch=1, bandwidth=10.0, latency=0.25, update_seconds=[1.0, 1.0]
    )
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    alone, together = simulate(plain, plan), simulate(tied(plain, 0, 1), plan)
    assert alone.round_seconds == 4 + 2 * 0.25 + 1
    # The second stage's rounds follow each other: the first one's next forward is over by the time that it has stepped.
    assert together.round_seconds == 2 + 2 * 4.25 + 1
    assert (alone.sent_bytes, together.sent_bytes) == ({"a": 0, "b": 0}, {"a": SIZE, "b": SIZE})
    assert together.devices["b"].all_reduce > 0
    # The gradient from b to a and the sum back: b's forward and backward, and its step.
    told = {limit.text: limit.seconds for limit in together.limits}
    assert told == {
        "the sum of weights that stages share, from stage 1": 4.25,
        "the sum of weights that stages share, from stage 0": 4.25,
        "computing in stage 1": 3.0,
    }


def test_what_a_group_waits_for_behind_the_sum_is_its_all_reduce() -> None:
    """b's gradient is at a, the first of two, long before the two have reduced their own; then the sum goes to b and to c."""
    plain = make_instance([(1.0, 1.0)] * 2, devices=3, mini_batch=2, bandwidth=10.0, gradient_bytes=400)
    plan = make_plan((1, {"a": 1, "c": 1}, 1), (1, {"b": 2}, 1), micro_batches=1)
    told = {limit.text: limit.seconds for limit in simulate(tied(plain, 0, 1), plan).limits}
    assert told["the all-reduce of stage 0"] >= 40 - 4
    assert "the sum of weights that stages share, from stage 1" not in told


def test_replicas_get_it_from_the_first_of_their_group() -> None:
    plain = make_instance([(1.0, 1.0)] * 2, devices=4, mini_batch=2, bandwidth=10.0)
    plan = make_plan((1, {"a": 1, "b": 1}, 1), (1, {"c": 1, "d": 1}, 1), micro_batches=1)
    result = simulate(tied(plain, 0, 1), plan)
    assert result.sent_bytes == {"a": 2 * SIZE, "b": 0, "c": 2 * SIZE, "d": 0}
    # Forward and backward; to a, back to c beside what goes to b over the same card, then on to d, beside c's next round.
    assert 2 + 4 + 8 <= result.round_seconds <= 2 + 4 + 8 + 4 + 0.5


def test_three_stages_and_several_sums_one_after_the_other() -> None:
    plain = make_instance([(1.0, 1.0)] * 3, devices=3, mini_batch=1, bandwidth=10.0)
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), (1, {"c": 1}, 1), micro_batches=1)
    model = replace(plain.model, tied=(TiedCosts((0, 1, 2), SIZE, SIZE), TiedCosts((1, 2), SIZE, SIZE)))
    result = simulate(replace(plain, model=model), plan)
    assert result.sent_bytes == {"a": 2 * SIZE, "b": 2 * SIZE, "c": 2 * SIZE}


def test_what_one_stage_holds_or_what_is_frozen_is_nobodys_to_sum() -> None:
    instance = make_instance([(1.0, 1.0)] * 3, devices=2, mini_batch=1, bandwidth=10.0)
    plan = make_plan((2, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    assert tied_sums(tied(instance, 0, 1).model, plan) == ()
    assert tied_sums(tied(instance, 0, 2).model, plan) == (TiedSum((0, 1), SIZE),)
    frozen = replace(instance.model, tied=(TiedCosts((0, 2), SIZE, 0),))
    assert tied_sums(frozen, plan) == ()
