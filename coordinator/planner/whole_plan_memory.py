"""What a device's memory holds that is known for a whole plan only: its links, its all-reduce, kernels of other sizes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .connection_memory import connection_bytes
from .kernel_memory import further_kernel_bytes


def whole_plan_bytes(instance: PlanningInstance, plan: Plan, *, earlier: Sequence[Plan] = ()) -> dict[str, int]:
    """By device that computes. earlier: as `further_kernel_bytes` has it."""
    kernels = further_kernel_bytes(instance, plan, earlier=earlier)
    return {device: held + kernels[device] for device, held in connection_bytes(instance, plan).items()}
