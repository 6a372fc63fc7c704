"""What a plan is expected to do: the round as the simulator has it, each stage's parts and memory by the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeswarm.plan import Plan, Prediction
from edgeswarm.profile import PlanningInstance

from ..simulator.log import TIED_SUM
from ..simulator.simulate import simulate
from ..simulator.simulation import Limit
from .cost_model import evaluate

# Limits that make up less of the round than this are not worth a word.
_WORTH_A_WORD = 0.15
_MOST_LIMITS = 3


def predict(instance: PlanningInstance, plan: Plan, *, earlier: Sequence[Plan] = ()) -> Prediction:
    """Any plan's prediction, of one written by hand too; it needn't fit memory.

    earlier: as `plan_memory_bytes` has it.
    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    simulated = simulate(instance, plan)
    return replace(
        evaluate(instance, plan, frame_bytes=simulated.frame_bytes, earlier=earlier),
        round_seconds=simulated.round_seconds,
        samples_per_second=simulated.samples_per_second,
        dominant=describe_limits(plan, simulated.limits),
    )


def with_prediction(instance: PlanningInstance, plan: Plan, *, earlier: Sequence[Plan] = ()) -> Plan:
    """The same plan with `predicted` filled in. earlier: as `plan_memory_bytes` has it."""
    return replace(plan, predicted=predict(instance, plan, earlier=earlier))


def predicted_seconds(plan: Plan) -> float:
    """Of a round of a plan that has its prediction."""
    assert plan.predicted is not None, "whoever plans predicts"
    return plan.predicted.round_seconds


def describe_limits(plan: Plan, limits: tuple[Limit, ...]) -> str:
    """What a round's critical path is made of, in words: the largest part first, small ones left out.

    limits: none where the round takes no time, as by a profile whose layers all take 0 s.
    """
    if not limits:
        return "nothing, since nothing in it takes any time"
    told = [limit for limit in limits[:_MOST_LIMITS] if limit.fraction >= _WORTH_A_WORD] or list(limits[:1])
    parts = [f"{_with_devices(plan, limit)} for {limit.fraction:.0%}" for limit in told]
    return ", ".join([f"{parts[0]} of it", *parts[1:]])


def _with_devices(plan: Plan, limit: Limit) -> str:
    if limit.kind in ("link", TIED_SUM):
        return limit.text
    return f"{limit.text} ({', '.join(plan.stages[limit.stage].devices)})"
