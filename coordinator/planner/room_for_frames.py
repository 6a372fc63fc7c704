"""Fewer micro-batches in flight where frames that wait would take more memory than a device has. Pure.

A search counts frames by a formula; which of them really wait is known once a whole plan is simulated:

    stage 0, K = 5   f f f f f
    stage 1, K = 1             b b            up to four inputs lie there, if it is the slow one
    stage 0, K = 2   f f                      and one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .prediction import with_prediction
from .shortage import Shortage, plan_shortages


def with_room_for_frames(instance: PlanningInstance, plan: Plan) -> Plan | None:
    """The plan, with its prediction, as it is or with smaller K; None where one of its devices is short of memory even so.

    plan: with its prediction.
    """
    shortages = _shortages(instance, plan)
    while shortages:
        tries = [with_prediction(instance, fewer) for fewer in _with_fewer(plan, shortages[0])]
        short_of = [_shortages(instance, fewer) for fewer in tries]
        least = min(range(len(tries)), key=lambda place: _lack(short_of[place]), default=None)
        if least is None:
            return None
        plan, shortages = tries[least], short_of[least]
    return plan


def _with_fewer(plan: Plan, shortage: Shortage) -> Iterator[Plan]:
    """One less in flight in the stage that is short of memory, or in the one before it."""
    short = next(place for place, stage in enumerate(plan.stages) if stage.first_layer == shortage.first_layer)
    for place in (short - 1, short):
        if place >= 0 and plan.stages[place].in_flight > 1:
            fewer = replace(plan.stages[place], in_flight=plan.stages[place].in_flight - 1)
            yield replace(plan, stages=(*plan.stages[:place], fewer, *plan.stages[place + 1 :]))


def _shortages(instance: PlanningInstance, plan: Plan) -> tuple[Shortage, ...]:
    assert plan.predicted is not None
    return plan_shortages(instance, plan, needed=plan.predicted.memory_bytes)


def _lack(shortages: tuple[Shortage, ...]) -> int:
    return sum(shortage.lacking_bytes for shortage in shortages)
