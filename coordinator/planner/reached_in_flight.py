"""K no larger than a round has use for: what a stage never reaches would be memory kept for nothing. Pure.

    K_p of the paper                         5 . . . . .
    reached in a round                       2 x x              enough, where no round gets longer by it
    with one of the stages, or the links,    3 x x x            else this
    slower than they are said to be

Behind a stage that is much slower little of K_p is reached, whatever happens. And a K that is reached in each round is one whose
memory can be foretold: with a larger one a stage would hold a micro-batch more in one training and not in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..simulator.simulate import round_and_in_flight
from .prediction import with_prediction

# Predictions of rounds are off by less (bench.predictions: the 95th percentile).
_SLOWER = 1.15
# A round that is longer by so little is none.
_LONGER = 1.002


def with_reached_in_flight(instance: PlanningInstance, plan: Plan) -> Plan:
    """The same plan, with its prediction, whose round in the simulator is the very same; each stage's K is smaller or as it was.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    most = round_and_in_flight(instance, plan)[1]
    for slower in _slower_in_part(instance, plan):
        seconds, reached = round_and_in_flight(slower, plan)
        more = tuple(map(max, most, reached))
        if more != most and round_and_in_flight(slower, _with_most(plan, most))[0] > _LONGER * seconds:
            most = more
    fewer = _with_most(plan, most)
    return plan if fewer.stages == plan.stages else with_prediction(instance, fewer)


def _with_most(plan: Plan, most: Sequence[int]) -> Plan:
    """By stage, at most so many in flight."""
    limited = zip(plan.stages, most, strict=True)
    return replace(
        plan, stages=tuple(replace(stage, in_flight=min(stage.in_flight, limit)) for stage, limit in limited)
    )


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
