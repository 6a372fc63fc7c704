"""Whether the workers' rehearsals bear out what the plan expects of their memory. Pure.

A rehearsal holds a stage's weights, gradients and the activations of all its micro-batches in flight, but neither frames nor
the optimizer's step: it is to stay below the prediction, which has them all.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeswarm.plan import Plan

from .planner.units import readable_bytes

# Two runs of the same stage differ by about as much.
TOLERANCE = 0.03


def rehearsal_warnings(plan: Plan, rehearsed_bytes: Mapping[str, int]) -> list[str]:
    """What to tell of each device that held more than the plan says. rehearsed_bytes: by device; 0 where it wasn't measured.

    None for a plan without a prediction.
    """
    if plan.predicted is None:
        return []
    expected = plan.predicted.memory_bytes
    return [
        f"{device} held {readable_bytes(held)} when it tried its stage out, {held / expected[device] - 1:.0%} more than the plan "
        f"expects ({readable_bytes(expected[device])}): it may run short of memory. A smaller --micro-batch takes less."
        for device, held in rehearsed_bytes.items()
        if device in expected and held > expected[device] * (1 + TOLERANCE)
    ]
