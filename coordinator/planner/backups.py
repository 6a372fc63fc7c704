"""Which device holds the backup of which stage. Pure."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .cost_model import plan_memory_bytes


def with_backups(instance: PlanningInstance, plan: Plan) -> Plan:
    """The plan with a backup holder for each stage on one device: of the next stage (the last one's: of the first), the device
    that has most memory left.

    A replicated stage needs none, since each replica has its state; a plan with one stage on one device has nowhere to.
    """
    if len(plan.stages) == 1:
        return replace(plan, backup={})
    needed = plan_memory_bytes(instance, plan)
    left = {device: instance.devices[instance.index_of[device]].memory_bytes - held for device, held in needed.items()}
    return replace(
        plan,
        backup={
            index: max(plan.stages[(index + 1) % len(plan.stages)].devices, key=lambda device: left[device])
            for index, stage in enumerate(plan.stages)
            if not stage.replicated
        },
    )
