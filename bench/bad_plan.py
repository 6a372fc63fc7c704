"""A plan that nobody should want: a prediction has to tell it from good ones, and by how much."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.needed_in_flight import with_needed_in_flight
from edgeswarm_coordinator.planner.prediction import with_prediction

BAD_PLAN = "even cuts, slowest first"
BAD_PLANNER = "even-cuts"
MOST_MICRO_BATCH = 32
# In micro-batches of a device, to find what needs to be in flight: what a plan takes that may hold more can't be foretold.
MOST_WORK = 100_000


def even_cuts(instance: PlanningInstance) -> Plan | None:
    """As many layers on each device, whatever they cost, the slowest device first.

    None where that fits no memory, or a layer needs more samples at once than a micro-batch has.
    """
    mini_batch = instance.training.mini_batch
    layers = instance.model.layer_count
    order = sorted(instance.device_names, key=lambda name: -instance.profile_of(name).forward(mini_batch, 0, layers))[
        :layers
    ]
    cuts = [round(place * layers / len(order)) for place in range(len(order) + 1)]
    micro_batch = min(MOST_MICRO_BATCH, max(1, mini_batch // 8))
    stages = tuple(
        Stage(cuts[place], cuts[place + 1], {name: micro_batch}, 2 * (len(order) - place) - 1)
        for place, name in enumerate(order)
    )
    plan = Plan(
        planner="by hand",
        micro_batch=micro_batch,
        micro_batches=-(-mini_batch // micro_batch),
        last_micro_batch=mini_batch % micro_batch or None,
        stages=stages,
    )
    try:
        predicted = with_needed_in_flight(instance, with_prediction(instance, plan), most_work=MOST_WORK)
    except EdgeswarmError:
        return None
    assert predicted.predicted is not None
    budgets = {device.name: device.memory_bytes for device in instance.devices}
    fits = all(budgets[name] >= need for name, need in predicted.predicted.memory_bytes.items())
    return replace(predicted, planner=BAD_PLANNER) if fits else None
