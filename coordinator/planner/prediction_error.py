"""How far a plan's predicted round may be off, from the errors of the curves that it was predicted with. Pure.

A profile says how far each layer's curve may be off (layer_errors: one standard error) and how far sums over layers were
off from whole stages (sums_error, root mean square). One kind of hardware after the other has its layers in the plan slowed
down by that much, and then sped up, and both rounds are simulated; kinds were measured apart, so that squares add up:

    error of a layer            sqrt(e_l^2 + (13 % for each doubling of its largest measured batch size)^2)
    error of a stage's layers   sqrt(sum of (that x t_l)^2) / sum of t_l  layers with one and the same curve count as one
    of a stage, on one kind     sqrt(that^2 + sums_error^2)               all stages of the kind are off in the same direction
    of the round                sqrt(sum over kinds of ((round with it slower - round with it quicker) / 2)^2) / round

So what hides behind other devices or links counts for nothing, what decides the round counts in full, and of two that decide
it together each counts by half. Links, frames and the optimizer's step count as measured: nothing is known of their errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from edgeswarm.layer_curves import extrapolation_error
from edgeswarm.model_costs import FloatArray
from edgeswarm.plan import Plan
from edgeswarm.profile import DeviceProfile, PlanningInstance

from ..simulator.simulate import round_seconds


def with_relative_error(instance: PlanningInstance, plan: Plan) -> Plan:
    """The same plan; its prediction, where it has one, says how far the round may be off."""
    if plan.predicted is None:
        return plan
    return replace(plan, predicted=replace(plan.predicted, relative_error=relative_error(instance, plan)))


def relative_error(instance: PlanningInstance, plan: Plan) -> float | None:
    """One standard error of the round's seconds, as a part of them; None where no error of any curve in use is known.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    kinds = sorted({instance.devices[instance.index_of[device]].profile for device in plan.devices})
    unsure = [kind for kind in kinds if has_errors(instance.profiles[kind])]
    if not unsure:
        return None
    seconds = round_seconds(instance, plan)
    if not seconds > 0:
        return 0.0
    squares = 0.0
    for kind in unsure:
        errors = _layers_off(instance.profiles[kind], _stages_of(instance, plan, kind))
        slower, quicker = (
            round_seconds(_with_profile(instance, kind, factors), plan)
            for factors in (1.0 + errors, np.maximum(1.0 - errors, 0.0))
        )
        squares += ((slower - quicker) / 2) ** 2
    return math.sqrt(squares) / seconds


def has_errors(profile: DeviceProfile) -> bool:
    """Whether anything is known of how far its measured curves are off."""
    return profile.sums_error > 0 or any(error > 0 for error in profile.layer_errors)


def stage_error(profile: DeviceProfile, *, first_layer: int, end_layer: int, samples: int) -> float:
    """By which part a device's seconds for layers [first_layer, end_layer) of `samples` samples may be off."""
    errors = _layer_errors(profile, samples)
    if not errors.any():
        return profile.sums_error
    forward, backward = (np.diff(before)[first_layer:end_layer] for before in profile.seconds_before(samples))
    seconds: FloatArray = forward + backward
    whole = float(seconds.sum())
    if whole == 0:
        return profile.sums_error
    squares = 0.0
    for alike in _alike(profile, range(first_layer, end_layer)):
        squares += sum(float(errors[layer]) * float(seconds[layer - first_layer]) for layer in alike) ** 2
    return math.hypot(math.sqrt(squares) / whole, profile.sums_error)


def _layer_errors(profile: DeviceProfile, samples: int) -> FloatArray:
    """[layer_count]: by which part each layer's seconds for `samples` samples may be off, by itself."""
    errors = np.array(profile.layer_errors or (0.0,) * profile.layer_count)
    if profile.largest_measured:
        errors = np.hypot(errors, extrapolation_error(np.array(profile.largest_measured), samples))
    return errors


def _alike(profile: DeviceProfile, layers: Iterable[int]) -> list[list[int]]:
    """Layers whose curves are the same numbers: those of one signature, measured once."""
    found: dict[tuple[float, ...], list[int]] = {}
    for layer in layers:
        curve = tuple(row[layer] for rows in (profile.forward_seconds, profile.backward_seconds) for row in rows)
        found.setdefault(curve, []).append(layer)
    return list(found.values())


def _stages_of(instance: PlanningInstance, plan: Plan, kind: str) -> list[tuple[int, int, int]]:
    """(first layer, end layer, samples at once) of all that devices of the kind compute."""
    return [
        (stage.first_layer, stage.end_layer, stage.at_once(device))
        for stage in plan.stages
        for device in stage.devices
        if instance.devices[instance.index_of[device]].profile == kind
    ]


def _layers_off(profile: DeviceProfile, stages: Iterable[tuple[int, int, int]]) -> FloatArray:
    """[layer_count]: by layer its stage's error; the larger one where devices of the kind share a stage."""
    errors = np.zeros(profile.layer_count)
    for first, end, samples in stages:
        error = stage_error(profile, first_layer=first, end_layer=end, samples=samples)
        errors[first:end] = np.maximum(errors[first:end], error)
    return errors


def _with_profile(instance: PlanningInstance, kind: str, factors: FloatArray) -> PlanningInstance:
    """The instance with one kind's seconds multiplied, layer by layer."""
    return replace(instance, profiles={**instance.profiles, kind: instance.profiles[kind].with_seconds_times(factors)})
