"""PipeDream's planner (SOSP 2019): its optimizer on the average device; stages go to devices in order of memory.

It was made for equal machines and for pipelines that update the weights after every mini-batch, which is one of our
micro-batches. Both are left as they are: all-reduces count once a micro-batch, and a group shares evenly. Its levels are
our rooms where they are of one size; else there is one level, with the slowest link's bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgeswarm.profile import PlanningInstance

from ..asteroid import FoundPipeline
from ..shortage import Shortage
from .equal_shares import StageCut, average_layer_seconds, cut_shortage, found_pipeline
from .pipedream_program import Level, ModelStates, PipelineFound, optimize
from .rooms import rooms_of


def pipedream(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """The optimizer's pipeline at one micro-batch size; None where it fits no memory or takes longer than `slowest_round`.

    First without a look at memory. Where that doesn't fit, with the optimizer's own limit at the memory of the largest
    device, of the next smaller one, and so on; then so with at most 3 mini-batches in flight, 2, and 1.
    """
    limits = sorted({float(device.memory_bytes - device.base_bytes) for device in instance.devices}, reverse=True)
    rooms, levels = _levels(instance)
    states = _states(instance, micro_batch)
    for limit, most in _limits(states, levels, limits):
        pipeline = optimize(states, levels, memory_bytes=limit, most_in_flight=most)
        found = None if pipeline is None else found_pipeline(instance, _on_devices(pipeline, rooms), micro_batch)
        if found is not None:
            return found if found.round_seconds <= slowest_round else None
    return None


def _limits(
    states: ModelStates, levels: tuple[Level, ...], limits: Sequence[float]
) -> Iterator[tuple[float | None, int | None]]:
    """Memory and mini-batches in flight to plan with, none first; no others where the largest device is too small for any."""
    yield None, None
    if optimize(states, levels, memory_bytes=limits[0], most_in_flight=1) is not None:
        yield from ((limit, most) for most in (None, 3, 2, 1) for limit in limits)


def pipedream_shortage(instance: PlanningInstance, micro_batch: int) -> tuple[Shortage, ...]:
    """What the devices lack for the optimizer's choice without a look at memory."""
    rooms, levels = _levels(instance)
    pipeline = optimize(_states(instance, micro_batch), levels)
    assert pipeline is not None, "without a limit one stage over all machines is always there"
    return cut_shortage(instance, _on_devices(pipeline, rooms), micro_batch)


def _states(instance: PlanningInstance, micro_batch: int) -> ModelStates:
    forward, backward = average_layer_seconds(instance, micro_batch)
    layers = instance.model.layers
    return ModelStates.of_chain(
        forward + backward,
        layer_parameter_bytes=[float(layer.param_bytes) for layer in layers],
        layer_activation_bytes=[float(layer.saved_bytes * micro_batch) for layer in layers],
        # This runtime keeps one version of the weights, beside gradients and optimizer state.
        # A tied parameter with the first of its layers: what a stage holds at the least.
        layer_resident_bytes=np.diff([instance.resident_bytes(0, end) for end in range(len(layers) + 1)]).tolist(),
        output_bytes=[float(layer.output_bytes * micro_batch) for layer in layers],
    )


def _levels(instance: PlanningInstance) -> tuple[tuple[tuple[int, ...], ...], tuple[Level, ...]]:
    """Rooms of devices by their places, and the levels of machines that they are."""
    rooms = rooms_of(instance)
    sizes = {len(room) for room in rooms}
    if len(rooms) > 1 and len(sizes) > 1:
        rooms = (tuple(place for room in rooms for place in room),)
    every = [(a, b) for a in range(len(instance.devices)) for b in range(len(instance.devices)) if a != b]
    slowest = instance.network.slowest(every)
    if len(rooms) == 1:
        return rooms, (Level(len(rooms[0]), slowest),)
    inside = instance.network.slowest((a, b) for room in rooms for a in room for b in room if a != b)
    return rooms, (Level(len(rooms[0]), inside), Level(len(rooms), slowest))


def _on_devices(pipeline: PipelineFound, rooms: tuple[tuple[int, ...], ...]) -> list[StageCut]:
    """Stages take devices in order: inside a room those that its earlier stages left, in every room of their component.

    A component that is replicated over rooms has the same stages in each of them.
    """
    taken = [0] * len(rooms)
    cuts = []
    first_room = 0
    for stage in pipeline.stages:
        inside, across = stage.replicas if len(stage.replicas) == 2 else (stage.replicas[0], 1)
        if taken[first_room] == len(rooms[first_room]):
            first_room = next(room for room, count in enumerate(taken) if count == 0)
        group: list[int] = []
        for room in range(first_room, first_room + across):
            group.extend(rooms[room][taken[room] : taken[room] + inside])
            taken[room] += inside
        cuts.append(StageCut(stage.first, stage.end, tuple(group)))
    return cuts
