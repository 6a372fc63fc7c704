"""Plans of other planners that the search starts from, where they cost little: it must not end with a slower one."""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..assemble import bare_plan
from ..asteroid import search
from ..planning_work import runs_of_groups

# Runs of layers times groups that Asteroid's program looks at for each size: some hundredths of a second.
_MOST_WORK = 60_000
_MOST_SIZES = 3


def seed_plans(instance: PlanningInstance, sizes: Sequence[int]) -> list[Plan]:
    """Asteroid's plans at a few sizes, where it has one, without predictions.

    Those of one stage and of one device the search makes anyway.
    """
    if runs_of_groups(instance) > _MOST_WORK:
        return []
    step = max(1, len(sizes) // _MOST_SIZES)
    plans = []
    for size in list(sizes)[step // 2 :: step][:_MOST_SIZES]:
        found = search(instance, micro_batch=size)
        if found is None:
            continue
        plan = bare_plan(instance, found, planner="asteroid", left_out="not used by this planner")
        if plan is not None:
            plans.append(plan)
    return plans
