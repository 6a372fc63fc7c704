"""A few cut points that stand for all of them: the first search looks at these, the local search moves them.

The layers are divided into runs of about the same work, and into runs of about the same weight; of each run the cut
that the fewest bytes cross is taken:

    layers   0 1 2 3 4 5 6 7 8 9 ...
    work     |-------|-------|------ ...
    cut          ^       ^      ^     the cheapest of each run
"""

from __future__ import annotations

import numpy as np

from edgeswarm.model_costs import FloatArray
from edgeswarm.profile import PlanningInstance


def candidate_cuts(instance: PlanningInstance, most: int) -> list[int]:
    """At most about `most` cuts, from 0 to layer_count, both included, ascending; all of them where there are no more."""
    count = instance.model.layer_count
    if count + 1 <= most:
        return list(range(count + 1))
    inner = max(1, most - 2)
    by_weight = inner // 4
    chosen = {0, count}
    chosen |= _cheapest_of_each_run(instance, _work_before(instance), inner - by_weight)
    weight = instance.model.param_bytes_before.astype(np.float64)
    if weight[-1] > 0 and by_weight:
        chosen |= _cheapest_of_each_run(instance, weight / weight[-1], by_weight)
    return sorted(chosen)


def _work_before(instance: PlanningInstance) -> FloatArray:
    """[layer_count + 1]: share of the work before each cut, by the mean of the classes."""
    batch = instance.training.mini_batch
    total = np.zeros(instance.model.layer_count + 1)
    for kind in sorted({device.profile for device in instance.devices}):
        forward, backward = instance.profiles[kind].seconds_before(batch)
        total = total + (forward + backward) / max(float(forward[-1] + backward[-1]), 1e-300)
    # Layers that take no time are told apart by their number alone.
    total = total + 1e-9 * np.arange(len(total))
    result: FloatArray = total / total[-1]
    return result


def _cheapest_of_each_run(instance: PlanningInstance, before: FloatArray, runs: int) -> set[int]:
    cut_bytes = instance.model.cut_bytes
    chosen = set()
    for run in range(runs):
        low, high = (run + 0.5) / (runs + 1), (run + 1.5) / (runs + 1)
        inside = np.flatnonzero((before >= low) & (before < high))
        inside = inside[(inside > 0) & (inside < len(before) - 1)]
        if len(inside):
            distance = np.abs(before[inside] - (low + high) / 2)
            chosen.add(int(inside[np.lexsort((distance, cut_bytes[inside]))[0]]))
    return chosen
