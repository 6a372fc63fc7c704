"""GPipe's planner (NeurIPS 2019): one device a stage, all devices, layers cut so that the stages' costs vary least.

The cost of a layer is its time on the average device, as torchgpipe's balance measures it on one. Where such a cut fits
no memory, the layers are cut by their bytes instead, torchgpipe's other way. GPipe keeps all micro-batches of a round
in flight and flushes then; the cuts are as there, the schedule is this runtime's 1F1B, with K from memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeswarm.profile import PlanningInstance

from ..asteroid import FoundPipeline, memory_order
from ..shortage import Shortage
from .equal_shares import StageCut, average_layer_seconds, cut_shortage, found_pipeline


def gpipe_by_time(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """Stages of about equal seconds; None where they fit no memory or take longer than `slowest_round`."""
    forward, backward = average_layer_seconds(instance, micro_batch)
    found = found_pipeline(instance, _cuts(instance, forward + backward), micro_batch)
    return found if found is not None and found.round_seconds <= slowest_round else None


def gpipe_by_size(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """Stages of about equal bytes; None where they fit no memory or take longer than `slowest_round`."""
    found = found_pipeline(instance, _cuts(instance, _layer_bytes(instance, micro_batch)), micro_batch)
    return found if found is not None and found.round_seconds <= slowest_round else None


def gpipe_shortage(instance: PlanningInstance, micro_batch: int) -> tuple[Shortage, ...]:
    """What the devices lack for stages of about equal bytes."""
    return cut_shortage(instance, _cuts(instance, _layer_bytes(instance, micro_batch)), micro_batch)


def balanced_cuts(costs: npt.ArrayLike, blocks: int) -> tuple[int, ...]:
    """Cut points, blocks + 1 of them, of the sequence into that many runs whose sums have the least variance.

    Their mean is given, so this is the least sum of squares. Of equals the first cuts come as early as possible.
    """
    before = np.concatenate([np.zeros(1), np.cumsum(np.asarray(costs, dtype=np.float64))])
    count = len(before) - 1
    if not 1 <= blocks <= count:
        raise ValueError(f"{count} layers can't be cut into {blocks} stages")
    squares = (before[np.newaxis, :] - before[:, np.newaxis]) ** 2
    squares[np.tri(count + 1, dtype=bool)] = np.inf  # a run has at least one layer
    best = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    origins = []
    for _ in range(blocks):
        total = best[:, np.newaxis] + squares
        origins.append(np.argmin(total, axis=0))
        best = total.min(axis=0)
    cuts = [count]
    for origin in reversed(origins):
        cuts.append(int(origin[cuts[-1]]))
    return tuple(reversed(cuts))


def _cuts(instance: PlanningInstance, costs: npt.ArrayLike) -> list[StageCut]:
    order = memory_order(instance)[: instance.model.layer_count]
    cuts = balanced_cuts(costs, len(order))
    return [StageCut(cuts[index], cuts[index + 1], (place,)) for index, place in enumerate(order)]


def _layer_bytes(instance: PlanningInstance, micro_batch: int) -> list[float]:
    resident = np.diff(instance.resident_bytes_before).tolist()
    return [held + layer.saved_bytes * micro_batch for held, layer in zip(resident, instance.model.layers, strict=True)]
