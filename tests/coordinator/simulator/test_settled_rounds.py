"""Seconds of a round once the pipeline has settled: no less than any replica takes from the end of one to the next."""

from __future__ import annotations

import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.simulator.engine import Engine
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ..planner.instances import make_instance


def test_a_last_round_with_none_behind_it_does_not_shorten_the_result() -> None:
    """One micro-batch a round; the second stage's all-reduce goes on while the next round's activations come in.

    They share its cards, so the all-reduce takes longer in the first round than in the last one that is simulated, behind
    which nothing comes. The ends of the stage that ends last are then closer together than rounds are.
    """
    instance = make_instance(
        (1.0, 1.0), (1.0, 1.0, 1.0), param_bytes=300, output_bytes=100, bandwidth=10.0, mini_batch=4
    )
    stages = (Stage(0, 1, {"a": 4}, 1), Stage(1, 2, {"b": 2, "c": 2}, 1))
    plan = Plan("by hand", micro_batch=4, micro_batches=1, stages=stages)
    engine = Engine(instance, plan)
    engine.run(1)
    first_stage = engine.end_of(0), engine.end_of(1)
    assert round_seconds(instance, plan) == pytest.approx(engine.longest_period(0, 1))
    assert round_seconds(instance, plan) > (first_stage[1] - first_stage[0]) * 1.01


def test_an_all_reduce_that_nobody_waits_for_is_not_in_the_round() -> None:
    """The second stage's all-reduce is over before the next round's first activations are there: it costs nothing."""
    instance = make_instance((1.0, 0.1), (1.0, 1.0, 1.0), param_bytes=20, output_bytes=1, bandwidth=40.0, mini_batch=4)
    plans = [
        Plan(
            "by hand",
            micro_batch=4,
            micro_batches=1,
            stages=(Stage(0, 1, {"a": 4}, 1), Stage(1, 2, group, 1)),
        )
        for group in ({"b": 2, "c": 2}, {"b": 4})
    ]
    with_all_reduce, without = (round_seconds(instance, plan) for plan in plans)
    # First stage 4 + 8, the link 0.05 or 0.1 each way, the second stage 0.2 + 0.4 or 0.4 + 0.8; its all-reduce 0.5.
    assert without == pytest.approx(12 + 2 * 0.1 + 1.2)
    assert with_all_reduce == pytest.approx(12 + 2 * 0.1 + 0.6)
