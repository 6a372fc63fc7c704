"""K no larger than a round has use for: what a stage never reaches would be memory kept for nothing. Pure.

    K_p of the paper                         5 . . . . .
    reached in a round                       2 x x
    with one of the stages, or the links,    3 x x x
    slower than they are said to be

Where stages are about equally fast, any of them may turn out to be the one that the others wait for, and most of K_p is reached;
behind a stage that is much slower little is, whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..simulator.simulate import round_and_in_flight
from .prediction import with_prediction

# Predictions of rounds are off by less (bench.predictions: the 95th percentile).
_SLOWER = 1.15


def with_reached_in_flight(instance: PlanningInstance, plan: Plan) -> Plan:
    """The same plan, with its prediction, whose round in the simulator is the very same; each stage's K is smaller or as it was.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    reached = [round_and_in_flight(each, plan)[1] for each in (instance, *_slower_in_part(instance, plan))]
    stages = tuple(
        replace(stage, in_flight=min(stage.in_flight, max(most)))
        for stage, most in zip(plan.stages, zip(*reached, strict=True), strict=True)
    )
    return plan if stages == plan.stages else with_prediction(instance, replace(plan, stages=stages))


def _slower_in_part(instance: PlanningInstance, plan: Plan) -> Iterator[PlanningInstance]:
    """One stage's layers after the other, then all links."""
    for stage in plan.stages:
        factors = np.ones(instance.model.layer_count)
        factors[stage.first_layer : stage.end_layer] = _SLOWER
        profiles = {kind: profile.with_seconds_times(factors) for kind, profile in instance.profiles.items()}
        yield replace(instance, profiles=profiles)
    network = instance.network
    bandwidth = tuple(tuple(rate / _SLOWER for rate in row) for row in network.bandwidth)
    yield replace(instance, network=replace(network, bandwidth=bandwidth))
