"""Whether the workers' rehearsals bear out what the plan expects of their memory. Pure.

A rehearsal holds a stage's weights, gradients and the activations of all its micro-batches in flight, but neither frames nor
the optimizer's step: it is to stay below the prediction, which has them all. What is more than that matters where memory is
about to end:

    0            expected   held          budget
    |----------------|--------|---------------|     plenty left: what a job's own data set takes, say
    |----------------------------|---|---|          told
                                   4/5 of the budget
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeswarm.plan import Plan

from .planner.units import readable_bytes

# Two runs of the same stage differ by about as much.
TOLERANCE = 0.03
# Of what a device may use; what a rehearsal hasn't (frames, the optimizer's step) may need the rest.
NEARLY_ALL = 0.8


def rehearsal_warnings(plan: Plan, rehearsed_bytes: Mapping[str, int], *, budget_bytes: Mapping[str, int]) -> list[str]:
    """What to tell of each device that held more than the plan says, and nearly all that it may use.

    rehearsed_bytes: by device; 0 where it wasn't measured. None for a plan without a prediction.
    """
    if plan.predicted is None:
        return []
    expected = plan.predicted.memory_bytes
    return [
        f"{device} held {readable_bytes(held)} when it tried its stage out, {held / expected[device] - 1:.0%} more than the plan "
        f"expects ({readable_bytes(expected[device])}): it may run short of memory, of which it has "
        f"{readable_bytes(budget_bytes[device])}. A smaller --micro-batch takes less."
        for device, held in rehearsed_bytes.items()
        if device in expected and held > expected[device] * (1 + TOLERANCE) and held > NEARLY_ALL * budget_bytes[device]
    ]
