"""K no larger than a round has use for: what a stage never reaches would be memory kept for nothing. Pure.

K_p of the paper     5 . . . . .
reached in a round   2 x x
K                    3 x x .      one more, since a real round is not as even as a simulated one
"""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..simulator.simulate import round_and_in_flight
from .prediction import with_prediction

_MORE_THAN_REACHED = 1


def with_reached_in_flight(instance: PlanningInstance, plan: Plan) -> Plan:
    """The same plan, with its prediction, whose round in the simulator is the very same; each stage's K is smaller or as it was.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    _, reached = round_and_in_flight(instance, plan)
    stages = tuple(
        replace(stage, in_flight=min(stage.in_flight, most + _MORE_THAN_REACHED))
        for stage, most in zip(plan.stages, reached, strict=True)
    )
    return plan if stages == plan.stages else with_prediction(instance, replace(plan, stages=stages))
