"""Asteroid's plan with one of its ideas taken out (its section 5.4), and other rules for the micro-batches in flight.

naive            devices taken to be all alike, memory and links without limit
no inter-stage   naive stages and groups; a micro-batch's samples shared by Algorithm 1
no intra-stage   Asteroid's stages and groups; equal shares
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import DeviceProfile, Network, PlanningInstance
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.stage_tables import StageTables

PLENTY_BYTES = 2**60
PLENTY_BYTES_PER_SECOND = 1e15

# K_p from P-p, the stages from p to the end, and M; the third is Asteroid's and 1F1B's way there and back.
IN_FLIGHT_RULES: Mapping[str, Callable[[int, int], int]] = {
    "K = M": lambda to_end, micro_batches: micro_batches,
    "K = 2(P-p)+1": lambda to_end, micro_batches: 2 * to_end + 1,
    "K = 2(P-p)-1": lambda to_end, micro_batches: 2 * to_end - 1,
    "K = P-p": lambda to_end, micro_batches: to_end,
}


def ablated_plans(instance: PlanningInstance) -> dict[str, Plan | None]:
    """The variants by name, Asteroid's own first, all with its micro-batch size; None where no plan fits memory.

    A variant that is blind for memory may not fit; it is returned as it is.
    """
    whole = make_plan(instance, "asteroid")
    naive = make_plan(_all_alike(instance), "asteroid", micro_batch=whole.micro_batch)
    return {
        "asteroid": whole,
        "no intra-stage planning": _equal_shares(whole),
        "no inter-stage planning": _shared_by_speed(instance, naive),
        "naive": _equal_shares(naive),
    }


def variants(instance: PlanningInstance) -> dict[str, Plan | None]:
    """All that is compared: the ablated plans, edgeswarm's own, and the rules for K, each on the same pipeline.

    That is Asteroid's plan, or where it has a single stage, which K is no question for, one with a device for each stage.
    """
    plans = ablated_plans(instance)
    plans["edgeswarm"] = plan_or_none(instance, "edgeswarm")
    pipeline, before = plans["asteroid"], ""
    if pipeline is None or len(pipeline.stages) == 1:
        pipeline, before = plan_or_none(instance, "pipeline"), "pipeline, "
    if pipeline is not None and len(pipeline.stages) > 1:
        plans.update({f"{before}{name}": with_in_flight(pipeline, rule) for name, rule in IN_FLIGHT_RULES.items()})
    return plans


def with_in_flight(plan: Plan, rule: Callable[[int, int], int]) -> Plan:
    """The same plan with K by a rule; never more than the round has micro-batches."""
    count = len(plan.stages)
    stages = tuple(
        replace(stage, in_flight=max(1, min(rule(count - index, plan.micro_batches), plan.micro_batches)))
        for index, stage in enumerate(plan.stages)
    )
    return replace(plan, stages=stages, predicted=None)


def fits(instance: PlanningInstance, memory_bytes: Mapping[str, int]) -> bool:
    """Whether each device has what the plan takes there."""
    return all(instance.devices[instance.index_of[name]].memory_bytes >= need for name, need in memory_bytes.items())


def _all_alike(instance: PlanningInstance) -> PlanningInstance:
    """Each device the mean of all, with memory and links without limit."""
    profiles = [instance.profile_of(name) for name in instance.device_names]
    sizes = min((profile.batch_sizes for profile in profiles), key=len)

    def mean(seconds: Callable[[DeviceProfile, int, int], float]) -> tuple[tuple[float, ...], ...]:
        layers = range(instance.model.layer_count)
        return tuple(
            tuple(sum(seconds(profile, size, layer) for profile in profiles) / len(profiles) for layer in layers)
            for size in sizes
        )

    alike = DeviceProfile(
        batch_sizes=sizes,
        forward_seconds=mean(lambda profile, size, layer: profile.forward(size, layer, layer + 1)),
        backward_seconds=mean(lambda profile, size, layer: profile.backward(size, layer, layer + 1)),
    )
    return replace(
        instance,
        profiles={"alike": alike},
        devices=tuple(
            replace(device, profile="alike", memory_bytes=PLENTY_BYTES, base_bytes=0) for device in instance.devices
        ),
        network=Network.uniform(len(instance.devices), bytes_per_second=PLENTY_BYTES_PER_SECOND, latency_seconds=0.0),
    )


def _equal_shares(plan: Plan) -> Plan:
    """As equal as whole samples are; a device for which none is left goes idle."""

    def equal(stage: Stage) -> Stage:
        count = len(stage.shares)
        part, rest = divmod(plan.micro_batch, count)
        shares = {name: part + (place < rest) for place, name in enumerate(stage.shares)}
        return replace(stage, shares={name: share for name, share in shares.items() if share}, passes={})

    return replace(plan, stages=tuple(map(equal, plan.stages)), idle=(), backup={}, predicted=None)


def _shared_by_speed(instance: PlanningInstance, plan: Plan) -> Plan | None:
    """The plan's stages and groups, their samples shared by Algorithm 1; None where a stage doesn't fit its group."""
    order = [instance.index_of[name] for name in plan.devices]
    tables = StageTables(instance, order, micro_batch=plan.micro_batch)
    stages, first_device = [], 0
    for index, stage in enumerate(plan.stages):
        end_device = first_device + len(stage.shares)
        costs = tables.costs(first_device, end_device, len(plan.stages) - index)
        if math.isinf(costs.seconds_of(stage.first_layer, stage.end_layer)):
            return None
        shares = costs.shares_of(stage.first_layer, stage.end_layer)
        kept = {name: share for name, share in zip(stage.shares, shares, strict=True) if share}
        stages.append(replace(stage, shares=kept, passes={}))
        first_device = end_device
    return replace(plan, stages=tuple(stages), idle=(), backup={}, predicted=None)


def plan_or_none(instance: PlanningInstance, planner: str, micro_batch: int | None = None) -> Plan | None:
    """None where no plan fits."""
    try:
        return make_plan(instance, planner, micro_batch=micro_batch)
    except EdgeswarmError as error:
        if error.code is not ErrorCode.NO_PLAN_FITS:
            raise
        return None
