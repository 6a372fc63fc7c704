"""What else could be done: the plans of other planners for the same devices, and plans for other devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Prediction
from edgeswarm.profile import PlanningInstance

from .planners import is_too_much_work, make_plan
from .what_if import what_if


@dataclass(frozen=True)
class Alternative:
    """name: of a planner, or a change as it was asked for. plan: None where there is none; `problem` then says why.

    assumptions: sentences about what a change takes for granted. left_out: it was not asked, since it would take too long.
    """

    name: str
    plan: Plan | None
    problem: str = ""
    assumptions: tuple[str, ...] = ()
    left_out: bool = False

    @property
    def predicted(self) -> Prediction | None:
        return None if self.plan is None else self.plan.predicted

    def to_json(self) -> dict[str, Any]:
        """{"name", "plan"} or {"name", "problem"}; "assumptions" where there are any, "left_out" where it is."""
        outcome: dict[str, Any] = {"problem": self.problem} if self.plan is None else {"plan": self.plan.to_json()}
        if self.assumptions:
            outcome["assumptions"] = list(self.assumptions)
        if self.left_out:
            outcome["left_out"] = True
        return {"name": self.name, **outcome}


def of_planners(
    instance: PlanningInstance, planners: Iterable[str], *, micro_batch: int | None = None
) -> tuple[Alternative, ...]:
    """What each of these planners would do with the same devices; those that would take too long are left out."""
    return tuple(
        _left_out(name, instance)
        if is_too_much_work(instance, name)
        else _planned(name, instance, planner=name, micro_batch=micro_batch)
        for name in planners
    )


def of_changes(
    instance: PlanningInstance, changes: Iterable[str], *, planner: str, micro_batch: int | None = None
) -> tuple[Alternative, ...]:
    """What the planner would do after each of these changes alone; see what_if.py for their form."""
    alternatives = []
    for change in changes:
        changed = what_if(instance, change)
        alternative = _planned(change, changed.instance, planner=planner, micro_batch=micro_batch)
        alternatives.append(replace(alternative, assumptions=changed.assumptions))
    return tuple(alternatives)


def _planned(name: str, instance: PlanningInstance, *, planner: str, micro_batch: int | None) -> Alternative:
    try:
        return Alternative(name, make_plan(instance, planner, micro_batch=micro_batch))
    except EdgeswarmError as error:
        # Both are of this planner or this change; what was asked for has a plan.
        if error.code not in (ErrorCode.NO_PLAN_FITS, ErrorCode.PLAN_INVALID):
            raise
        return Alternative(name, None, error.message)


def _left_out(name: str, instance: PlanningInstance) -> Alternative:
    devices, layers = len(instance.devices), instance.model.layer_count
    why = f"planning for {devices} devices and {layers} layers would take it too long; --planner {name} asks it all the same."
    return Alternative(name, None, why, left_out=True)
