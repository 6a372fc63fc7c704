"""A prediction is the simulator's round with the formulas' parts, and says in words what the round is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.planner.cost_model import evaluate
from edgeswarm_coordinator.planner.prediction import describe_limits, predict, with_prediction
from edgeswarm_coordinator.simulator.simulate import round_seconds
from edgeswarm_coordinator.simulator.simulation import Limit

from .instances import make_instance

PLAN = Plan(
    planner="by hand",
    micro_batch=4,
    micro_batches=4,
    stages=(Stage(0, 2, {"a": 4}, 3), Stage(2, 4, {"b": 3, "c": 1}, 1)),
)


def test_the_round_is_the_simulators_and_the_rest_the_formulas() -> None:
    instance = make_instance(slower=(1.0, 1.0, 2.0), bandwidth=50.0)
    predicted = predict(instance, PLAN)
    assert predicted.round_seconds == round_seconds(instance, PLAN)
    assert predicted.samples_per_second == pytest.approx(16 / predicted.round_seconds)
    by_formula = evaluate(instance, PLAN)
    assert (predicted.stages, predicted.memory_bytes) == (by_formula.stages, by_formula.memory_bytes)
    assert with_prediction(instance, PLAN).predicted == predicted


def test_a_plan_of_another_instance_is_refused() -> None:
    with pytest.raises(EdgeswarmError):
        predict(make_instance(slower=(1.0, 1.0)), PLAN)


def test_what_limits_it_in_words() -> None:
    limits = (Limit("link", 0, 6.0, 0.6), Limit("all-reduce", 1, 3.0, 0.3), Limit("stage", 0, 1.0, 0.1))
    words = "the link from stage 0 to stage 1 for 60% of it, the all-reduce of stage 1 (b, c) for 30%"
    assert describe_limits(PLAN, limits) == words
    spread = tuple(replace(limit, fraction=0.1) for limit in limits)
    assert describe_limits(PLAN, spread) == "the link from stage 0 to stage 1 for 10% of it"
    assert describe_limits(PLAN, (Limit("data source", 0, 1.0, 1.0),)).startswith(
        "the samples from the data source to stage 0"
    )


def test_where_nothing_takes_time_nothing_limits() -> None:
    alone = Plan("by hand", 4, 4, (Stage(0, 2, {"a": 4}, 1),))
    predicted = predict(make_instance((0.0, 0.0), (1.0,)), alone)
    assert predicted.round_seconds == 0
    assert predicted.dominant == "nothing, since nothing in it takes any time"
