"""From what a search found to a whole Plan: idle devices with reasons, backup holders, the prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeswarm.plan import IdleDevice, Plan, Stage
from edgeswarm.profile import PlanningInstance

from .asteroid import FoundPipeline
from .backups import with_backups
from .chunk_owners import with_owners
from .prediction import with_prediction
from .units import readable_bytes

_NO_SAMPLES = "no sample of a micro-batch is left for it; the others of its group are faster or hold more"


def assemble_plan(instance: PlanningInstance, found: FoundPipeline, *, planner: str, left_out: str) -> Plan | None:
    """The plan of a found pipeline; None where a replica would get fewer samples of a last micro-batch than its layers need,
    that of an epoch's last round included.

    left_out: why a device that the search did not look at stays idle.
    """
    plan = bare_plan(instance, found, planner=planner, left_out=left_out)
    return None if plan is None else with_prediction(instance, with_backups(instance, plan))


def bare_plan(instance: PlanningInstance, found: FoundPipeline, *, planner: str, left_out: str) -> Plan | None:
    """The same without backup holders and prediction."""
    stages = tuple(
        Stage(
            stage.first_layer,
            stage.end_layer,
            {device: share for device, share in stage.shares if share > 0},
            stage.in_flight,
        )
        for stage in found.stages
    )
    mini_batch = instance.training.mini_batch
    rest = mini_batch % found.micro_batch
    plan = Plan(
        planner=planner,
        micro_batch=found.micro_batch,
        micro_batches=-(-mini_batch // found.micro_batch),
        last_micro_batch=rest or None,
        stages=stages,
        idle=_idle_devices(instance, found, left_out),
    )
    if instance.too_few_samples(plan):
        return None
    return with_owners(instance, plan)


def finished_plan(instance: PlanningInstance, plan: Plan, *, left_out: str) -> Plan:
    """A plan of stages and their owners with the devices that it leaves idle, backup holders and the prediction."""
    idle = tuple(
        IdleDevice(name, _no_room(instance, name) or left_out)
        for name in instance.device_names
        if name not in plan.devices
    )
    return with_prediction(instance, with_backups(instance, replace(plan, idle=idle)))


def _idle_devices(instance: PlanningInstance, found: FoundPipeline, left_out: str) -> tuple[IdleDevice, ...]:
    shares = {device: share for stage in found.stages for device, share in stage.shares}
    idle = []
    for name in instance.device_names:
        if name not in shares:
            idle.append(IdleDevice(name, _no_room(instance, name) or left_out))
        elif shares[name] == 0:
            idle.append(IdleDevice(name, _NO_SAMPLES))
    return tuple(idle)


def _no_room(instance: PlanningInstance, name: str) -> str:
    """Why no layer fits a device at all; empty where one does."""
    device, model = instance.devices[instance.index_of[name]], instance.model
    firsts = np.arange(model.layer_count)
    saved = (model.saved_bytes_before[1:] - model.saved_bytes_from[:-1]) * np.array(model.least_batches)
    least = float(np.min(instance.resident_bytes_of_runs(firsts, firsts + 1) + saved))
    if device.base_bytes + least <= device.memory_bytes:
        return ""
    by_itself = (
        f" beside the {readable_bytes(device.base_bytes)} that a worker takes by itself" if device.base_bytes else ""
    )
    return f"its {readable_bytes(device.memory_bytes)} of memory hold no layer{by_itself}"
