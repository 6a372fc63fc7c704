"""Why no plan fits: which device lacks how much memory at which setting, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model_costs import FloatArray
from edgeswarm.plan import Plan
from edgeswarm.profile import DeviceDescription, PlanningInstance

from .cost_model import held_bytes, in_flight_limit
from .passing_memory import passing_table
from .units import readable_bytes

# A narrower wire is worth a word where it saves this part of what is lacking.
WORTH_NARROWING = 0.01


@dataclass(frozen=True)
class Shortage:
    """One device of the plan that comes closest to fitting: what it would have to hold, and what it has."""

    device: DeviceDescription
    first_layer: int
    end_layer: int
    samples: int
    in_flight: int
    needed_bytes: int

    @property
    def lacking_bytes(self) -> int:
        return self.needed_bytes - self.device.memory_bytes


def plan_shortages(instance: PlanningInstance, plan: Plan, *, needed: Mapping[str, int]) -> tuple[Shortage, ...]:
    """The devices of a plan that have too little memory for it, the worst first. needed: bytes, by device."""
    shortages = (
        Shortage(
            *(instance.devices[instance.index_of[name]], stage.first_layer, stage.end_layer),
            samples=samples,
            in_flight=min(stage.in_flight, plan.micro_batches),
            needed_bytes=needed[name],
        )
        for stage in plan.stages
        for name, samples in stage.shares.items()
    )
    return tuple(sorted((each for each in shortages if each.lacking_bytes > 0), key=_lack, reverse=True))


def one_stage_shortage(instance: PlanningInstance, *, samples: int) -> tuple[Shortage, ...]:
    """The whole model on one device: the device that lacks least."""
    whole = (0, instance.model.layer_count)
    shortages = [
        _shortage(instance, place, whole, samples=samples, in_flight=1, micro_batches=1)
        for place in range(len(instance.devices))
    ]
    return (min(shortages, key=_lack),)


def pipeline_shortage(
    instance: PlanningInstance, order: list[int], *, samples: int, most_in_flight: int | None = None
) -> tuple[Shortage, ...]:
    """Of the pipelines of one device a stage over the first 1, 2, ... of the order, the one whose worst device lacks least.

    samples: of the smallest micro-batch. most_in_flight: a limit below K_p. Returns the devices that lack something,
    the worst first.
    """
    micro_batches = -(-instance.training.mini_batch // samples)
    best: tuple[Shortage, ...] = ()
    for count in range(1, min(len(order), instance.model.layer_count) + 1):
        limits = [
            in_flight_limit(stages_to_end=count - stage, micro_batches=micro_batches, most=most_in_flight)
            for stage in range(count)
        ]
        cuts = _cuts_with_least_lack(instance, order[:count], samples, limits, micro_batches=micro_batches)
        shortages = [
            _shortage(
                *(instance, order[stage], (cuts[stage], cuts[stage + 1])),
                samples=samples,
                in_flight=in_flight,
                micro_batches=micro_batches,
            )
            for stage, in_flight in enumerate(limits)
        ]
        shortages.sort(key=_lack, reverse=True)
        if not best or shortages[0].lacking_bytes < best[0].lacking_bytes:
            best = (shortages[0], *(shortage for shortage in shortages[1:] if shortage.lacking_bytes > 0))
    return best


def no_plan_fits(
    instance: PlanningInstance, shortages: tuple[Shortage, ...], *, planner: str, fixed_micro_batch: bool
) -> EdgeswarmError:
    """The error that tells a person which device lacks how much at which setting, and what would help."""
    worst = shortages[0]
    devices = "the device" if len(instance.devices) == 1 else f"the {len(instance.devices)} devices"
    if (worst.first_layer, worst.end_layer) == (0, instance.model.layer_count):
        layers = "the whole model, which takes"
    elif worst.end_layer - worst.first_layer == 1:
        layers = f"layer {worst.first_layer}, which takes"
    else:
        layers = f"layers {worst.first_layer} to {worst.end_layer - 1}, which take"
    samples = "sample" if worst.samples == 1 else "samples"
    flights = "micro-batch" if worst.in_flight == 1 else "micro-batches"
    return EdgeswarmError(
        ErrorCode.NO_PLAN_FITS,
        f"No plan of the planner '{planner}' fits the memory of {devices}: the closest would give {worst.device.name} "
        f"{layers} {readable_bytes(worst.needed_bytes)} with {worst.samples} {samples} in a micro-batch and "
        f"{worst.in_flight} {flights} in flight, but it has {readable_bytes(worst.device.memory_bytes)}: "
        f"{readable_bytes(worst.lacking_bytes)} too little.",
        f"What would help: {'; '.join(_remedies(instance, shortages, planner, fixed_micro_batch))}.",
    )


def _remedies(
    instance: PlanningInstance, shortages: tuple[Shortage, ...], planner: str, fixed_micro_batch: bool
) -> list[str]:
    worst = shortages[0]
    remedies = []
    if planner != "edgeswarm" and len(instance.devices) > 1:
        remedies.append("--planner edgeswarm, which cuts the model into stages as memory allows")
    if fixed_micro_batch and worst.samples > 1:
        remedies.append(f"a micro-batch smaller than {worst.samples}")
    lacks = [f"{readable_bytes(shortage.lacking_bytes)} on {shortage.device.name}" for shortage in shortages]
    remedies.append(f"more free memory: {', '.join(lacks)}")
    remedies.append("another device")
    state = instance.training.optimizer_state_bytes_per_parameter_byte
    if state > 0:
        saved = instance.model.trained_bytes(worst.first_layer, worst.end_layer) * state
        remedies.append(f"an optimizer without state (plain SGD saves {readable_bytes(saved)} there)")
    narrowed = _saved_by_a_narrow_wire(instance, worst)
    if narrowed > WORTH_NARROWING * worst.lacking_bytes:
        remedies.append(
            f'wire_dtype="bfloat16" or "float16" in the job (narrower frames save {readable_bytes(narrowed)} there)'
        )
    return remedies


def _saved_by_a_narrow_wire(instance: PlanningInstance, shortage: Shortage) -> int:
    """Bytes of the frames that the device holds at its cuts; the model's own input and output don't travel as frames."""
    layers = instance.model.layers
    saved = 0
    for cut in (shortage.first_layer, shortage.end_layer):
        if 0 < cut < len(layers) and (narrow := layers[cut - 1].narrow_output_bytes) is not None:
            saved += layers[cut - 1].output_bytes - narrow
    return instance.training.frames_held * shortage.samples * saved


def _lack(shortage: Shortage) -> int:
    return shortage.lacking_bytes


def _shortage(
    instance: PlanningInstance, place: int, layers: tuple[int, int], *, samples: int, in_flight: int, micro_batches: int
) -> Shortage:
    device = instance.devices[place]
    needed = held_bytes(
        instance,
        first_layer=layers[0],
        end_layer=layers[1],
        samples=samples,
        in_flight=in_flight,
        micro_batches=micro_batches,
        base_bytes=device.base_bytes,
    )
    return Shortage(device, *layers, samples, in_flight, needed)


def _cuts_with_least_lack(
    instance: PlanningInstance, order: list[int], samples: int, limits: list[int], *, micro_batches: int
) -> list[int]:
    """Cut points [stages + 1] for which the device that lacks most lacks least, by what `held_bytes` counts."""
    model = instance.model
    count = model.layer_count
    places = np.arange(count + 1)
    weights = instance.resident_bytes_of_runs(places[:, np.newaxis], places[np.newaxis, :])
    saved = model.saved_bytes_before[np.newaxis, :] - model.saved_bytes_from[:, np.newaxis]
    table = passing_table(instance)
    passing = table.bytes_of(samples)
    upper = np.triu(np.ones((count + 1, count + 1), dtype=bool), k=1)
    worst: FloatArray = np.where(np.arange(count + 1) == 0, -np.inf, np.inf)
    froms = []
    for place, in_flight in zip(order, limits, strict=True):
        device = instance.devices[place]
        waiting = table.waiting_per_sample(saved, in_flight=in_flight, micro_batches=micro_batches)
        needed = weights + passing + samples * waiting
        lack = needed + device.base_bytes - device.memory_bytes
        lack = np.where(upper, np.maximum(lack, worst[:, np.newaxis]), np.inf)
        froms.append(np.argmin(lack, axis=0))
        worst = lack.min(axis=0)
    cuts = [count]
    for origin in reversed(froms):
        cuts.append(int(origin[cuts[-1]]))
    return cuts[::-1]
