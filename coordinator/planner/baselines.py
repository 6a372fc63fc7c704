"""Plain plans to compare with: everything on one device, a pipeline without replication.

They use the same cost model and the same search as Asteroid's planner, with less freedom.
"""

from __future__ import annotations

from edgeswarm.profile import PlanningInstance

from .asteroid import FoundPipeline, memory_order, search


def longest_pipeline(
    instance: PlanningInstance, *, micro_batch: int, most_in_flight: int | None = None
) -> FoundPipeline | None:
    """One device a stage, in descending order of memory, the cut points by dynamic program.

    Over every device where that fits memory; else without the smallest, without the two smallest, and so on.
    """
    names = [instance.devices[place].name for place in memory_order(instance)]
    for count in range(len(names), 0, -1):
        found = search(
            instance.only(names[:count]), micro_batch=micro_batch, most_in_flight=most_in_flight, replicate=False
        )
        if found is not None:
            return found
    return None


def single(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """The whole model on the fastest device that holds it; of equals the one named first in the alphabet."""
    best: FoundPipeline | None = None
    for name in sorted(instance.device_names):
        found = search(instance.only([name]), micro_batch=micro_batch, slowest_round=slowest_round)
        if found is not None and (best is None or found.round_seconds < best.round_seconds):
            best = found
    return best
