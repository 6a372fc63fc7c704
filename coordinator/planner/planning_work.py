"""How much work it is to plan as planners do that were made for few devices: loops counted, not timed. Pure.

N devices, L layers, each loop over the next:

    asteroid     devices, stages, devices behind the head    pairs of devices     runs of layers    N^4 min(N, L) L^2
    dapple       devices taken of each room, more of them    steps of a round     runs of layers    N^2 L^2 prod(room)
    pipedream    machines, replicas, first layers of rooms   limits of memory     runs of layers    N^3 L^3
    pipeline     devices that take part, stages              runs of layers; its plan simulated     N^2 (L^2 + N)

The unit is an element of an array that is looked at: some nanoseconds.
"""

from __future__ import annotations

import itertools
import operator

from edgeswarm.profile import PlanningInstance

from .comparison.rooms import rooms_of

# More isn't worth it where nobody asked for the planner by name: so many elements are minutes. 16 devices with 213 layers take
# less, whatever rooms they are in. Counted, since the same devices are to get the same plan and the same comparison.
MOST_WORK = 6e10

# A call that looks at a small array costs as much as looking at so many elements of a large one.
_OF_A_CALL = 4_000
# Simulating a micro-batch in a stage, likewise.
_OF_A_SIMULATED_MICRO_BATCH = 10_000
# A pipeline is seldom worth more micro-batches for each of its stages.
_MICRO_BATCHES_OF_A_STAGE = 8
# How many pipelines a state of Asteroid's program keeps, times how often K is lowered until one fits.
_TRIED = 16
# DAPPLE's three policies, and two steps for each of its stages.
_POLICIES_AND_STEPS = 6


def runs_of_groups(instance: PlanningInstance) -> int:
    """Runs of layers times groups of devices next to each other in an order."""
    return instance.model.layer_count**2 * len(instance.devices) ** 2


def asteroid_work(instance: PlanningInstance) -> int:
    """Every number of devices in every number of stages, every head stage of them, every link within it and behind it."""
    devices = len(instance.devices)
    return devices**4 * min(devices, instance.model.layer_count) * _runs(instance)


def dapple_work(instance: PlanningInstance) -> int:
    """A state of its program has taken some devices of each of the first rooms, and none of the others."""
    sizes = [len(room) for room in rooms_of(instance)]
    states: int = 1 + sum(itertools.accumulate(sizes, operator.mul))
    return _POLICIES_AND_STEPS * states * len(instance.devices) ** 2 * _runs(instance)


def pipedream_work(instance: PlanningInstance) -> int:
    """Rooms of one size are a level of its optimizer, which is worked out for every first layer; and all that for each limit."""
    devices, layers = len(instance.devices), instance.model.layer_count
    sizes = [len(room) for room in rooms_of(instance)]
    has_levels = len(sizes) > 1 and len(set(sizes)) == 1
    once = (sizes[0] ** 2 * layers + len(sizes) ** 2 if has_levels else devices**2) * _runs(instance)
    limits = len({device.memory_bytes - device.base_bytes for device in instance.devices})
    return (2 + 4 * limits) * once


def pipeline_work(instance: PlanningInstance) -> int:
    """Over all devices, over all but one, and so on; what is found is simulated with each stage slower in turn."""
    devices = len(instance.devices)
    micro_batches = min(instance.training.mini_batch, _MICRO_BATCHES_OF_A_STAGE * devices)
    return devices**2 * (_TRIED * _runs(instance) + _OF_A_SIMULATED_MICRO_BATCH * micro_batches)


def _runs(instance: PlanningInstance) -> int:
    """Elements of an array of all runs of layers, and what a call costs."""
    return instance.model.layer_count**2 + _OF_A_CALL
