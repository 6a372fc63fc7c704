"""Fewer micro-batches in flight where frames that wait would take more memory than a device has. Pure.

A search counts frames by a formula; which of them really wait is known once a whole plan is simulated:

    stage 0, K = 5   f f f f f
    stage 1, K = 1             b b            up to four inputs lie there, if it is the slow one
    stage 0, K = 2   f f                      and one
"""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .prediction import predicted_seconds, with_prediction
from .shortage import Shortage, plan_shortages

# Up to a K of twice as much it is one less.
_PART_LESS = 8


def with_room_for_frames(instance: PlanningInstance, plan: Plan) -> Plan | None:
    """The plan, with its prediction, as it is or with smaller K; None where one of its devices is short of memory even so.

    plan: with its prediction.
    """
    shortages = _shortages(instance, plan)
    hopeful: set[str] = set()
    while shortages:
        short = shortages[0]
        if short.device.name not in hopeful and not _has_room_with_one(instance, plan, short):
            return None
        hopeful.add(short.device.name)
        tries = [
            with_prediction(instance, _with_in_flight(plan, place, _fewer(plan.stages[place].in_flight)))
            for place in _places(plan, short)
            if plan.stages[place].in_flight > 1
        ]
        if not tries:
            return None
        plan = min(tries, key=lambda fewer: (_lack(_shortages(instance, fewer)), predicted_seconds(fewer)))
        shortages = _shortages(instance, plan)
    return plan


def _has_room_with_one(instance: PlanningInstance, plan: Plan, short: Shortage) -> bool:
    """Whether the device that is short of memory has enough with one micro-batch in flight: each step less is a simulation, and
    where links or weights are too much all of them would be for nothing.
    """
    for place in _places(plan, short):
        plan = _with_in_flight(plan, place, 1)
    lacking = _shortages(instance, with_prediction(instance, plan))
    return all(shortage.device.name != short.device.name for shortage in lacking)


def _places(plan: Plan, short: Shortage) -> list[int]:
    """Of the stage before the one that is short of memory, where there is one, and of that."""
    own = next(place for place, stage in enumerate(plan.stages) if stage.first_layer == short.first_layer)
    return [own - 1, own] if own else [own]


def _fewer(in_flight: int) -> int:
    """One less; of many, a part less, so that it takes few steps."""
    return in_flight - max(1, in_flight // _PART_LESS)


def _with_in_flight(plan: Plan, place: int, in_flight: int) -> Plan:
    fewer = replace(plan.stages[place], in_flight=in_flight)
    return replace(plan, stages=(*plan.stages[:place], fewer, *plan.stages[place + 1 :]))


def _shortages(instance: PlanningInstance, plan: Plan) -> tuple[Shortage, ...]:
    assert plan.predicted is not None
    return plan_shortages(instance, plan, needed=plan.predicted.memory_bytes)


def _lack(shortages: tuple[Shortage, ...]) -> int:
    return sum(shortage.lacking_bytes for shortage in shortages)
