"""What planners for equal devices have in common: a group shares evenly, and memory has the last word.

They know one device, the average of those that are there. So a stage's replicas get equal shares; where a device's
memory holds fewer samples, what is left goes to the others of its group. K is 2(P-p)-1 or as many as memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.plan import Stage
from edgeswarm.profile import PlanningInstance

from ..asteroid import FoundPipeline, FoundStage
from ..cost_model import held_bytes, in_flight_limit, pipeline_steps, round_seconds
from ..passing_memory import passing_of_runs, passing_table
from ..shortage import Shortage


@dataclass(frozen=True)
class StageCut:
    """Layers [first_layer, end_layer), and places of the devices that hold them."""

    first_layer: int
    end_layer: int
    places: tuple[int, ...]


def average_layer_seconds(instance: PlanningInstance, samples: int) -> tuple[FloatArray, FloatArray]:
    """Forward and backward seconds of each layer on the average device, two arrays [layer_count]."""
    tables = [instance.profiles[device.profile].seconds_before(samples) for device in instance.devices]
    forward = np.mean([np.diff(table[0]) for table in tables], axis=0)
    backward = np.mean([np.diff(table[1]) for table in tables], axis=0)
    return forward, backward


def most_samples_of_runs(instance: PlanningInstance, place: int, *, in_flight: int, micro_batches: int) -> IntArray:
    """How many samples of each micro-batch a device's memory holds of layers [i, j), up to the mini-batch.

    [layer_count + 1, layer_count + 1]; 0 for none, and where j <= i.
    """
    model, device = instance.model, instance.devices[place]
    places = np.arange(model.layer_count + 1)
    weights = np.ceil(instance.resident_bytes_of_runs(places[:, np.newaxis], places[np.newaxis, :]))
    saved = model.saved_bytes_before[np.newaxis, :] - model.saved_bytes_from[:, np.newaxis]
    free = device.memory_bytes - device.base_bytes - weights
    passing = passing_table(instance)
    waiting = passing.waiting_per_sample(saved, in_flight=in_flight, micro_batches=micro_batches)
    most = passing.most_samples(free, waiting, limit=instance.training.mini_batch)
    result: IntArray = np.triu(most, k=1).astype(np.int64)
    return result


def share_evenly(samples: int, most: Sequence[int], *, least: int = 1) -> tuple[int, ...] | None:
    """Equal shares that add up to `samples`, none above its `most`; None where there is no room.

    Where a share would be below `least`, the last ones get none: (4, 4, 0) for 8 samples, three devices and least 4.
    """
    for count in range(len(most), 0, -1):
        room = [limit if place < count else 0 for place, limit in enumerate(most)]
        if sum(room) < samples:
            return None
        shares = [0] * len(most)
        for _ in range(samples):
            with_room = [place for place in range(count) if shares[place] < room[place]]
            shares[min(with_room, key=lambda place: shares[place])] += 1
        if all(share == 0 or share >= least for share in shares):
            return tuple(shares)
    return None


def found_pipeline(instance: PlanningInstance, cuts: Sequence[StageCut], micro_batch: int) -> FoundPipeline | None:
    """The stages with equal shares under memory, and K; None where a group doesn't hold the micro-batch even with K = 1.

    Its seconds are those of the cost model, with the devices as they are.
    """
    micro_batches = -(-instance.training.mini_batch // micro_batch)
    found = []
    for index, cut in enumerate(cuts):
        stage = _found_stage(
            instance,
            cut,
            micro_batch,
            most_in_flight=in_flight_limit(stages_to_end=len(cuts) - index, micro_batches=micro_batches),
            micro_batches=micro_batches,
        )
        if stage is None:
            return None
        found.append(stage)
    stages = [
        Stage(stage.first_layer, stage.end_layer, {name: n for name, n in stage.shares if n}, stage.in_flight)
        for stage in found
    ]
    return FoundPipeline(micro_batch, round_seconds(pipeline_steps(instance, stages), micro_batches), tuple(found))


def cut_shortage(instance: PlanningInstance, cuts: Sequence[StageCut], micro_batch: int) -> tuple[Shortage, ...]:
    """What each device of these stages would hold with an equal share and one micro-batch in flight, the worst first.

    The worst one is always there, the others only where they lack something.
    """
    shortages = []
    for cut in cuts:
        samples = max(1, -(-micro_batch // len(cut.places)))
        for place in cut.places:
            device = instance.devices[place]
            needed = held_bytes(
                instance,
                first_layer=cut.first_layer,
                end_layer=cut.end_layer,
                samples=samples,
                in_flight=1,
                micro_batches=1,
                base_bytes=device.base_bytes,
            )
            shortages.append(Shortage(device, cut.first_layer, cut.end_layer, samples, 1, needed))
    shortages.sort(key=lambda shortage: -shortage.lacking_bytes)
    return (shortages[0], *(shortage for shortage in shortages[1:] if shortage.lacking_bytes > 0))


def _found_stage(
    instance: PlanningInstance, cut: StageCut, micro_batch: int, *, most_in_flight: int, micro_batches: int
) -> FoundStage | None:
    model, limit = instance.model, instance.training.mini_batch
    first, end = cut.first_layer, cut.end_layer
    least, saved = model.least_batch(first, end), float(model.saved_bytes(first, end))
    weights = math.ceil(instance.resident_bytes(first, end))
    devices = [instance.devices[place] for place in cut.places]
    free = [device.memory_bytes - device.base_bytes - weights for device in devices]
    passing, run = passing_of_runs(instance, np.array([first]), np.array([end])), (0,)
    for in_flight in range(most_in_flight, 0, -1):
        waiting = passing.waiting_per_sample_of(run, saved, in_flight=in_flight, micro_batches=micro_batches)
        most = [passing.most_samples_of(run, bytes_left, waiting, limit=limit) for bytes_left in free]
        shares = share_evenly(micro_batch, most, least=least)
        if shares is not None:
            names = [device.name for device in devices]
            return FoundStage(first, end, tuple(zip(names, shares, strict=True)), in_flight)
    return None
