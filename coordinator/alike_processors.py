"""Processors of one kind: what a layer takes of the model on one of them, it takes on the others. Pure.

    seconds of layer    a     b     c     model       part of the model       a     b     c
    box with 4 GHz     1.0   3.0   1.0     5.0                              0.20  0.60  0.20
    box with 1 GHz     4.0   8.0   8.0    20.0                              0.20  0.40  0.40  <- something was in the way of c
    both                                                                    0.21  0.50  0.29

Each box keeps what the whole model takes there; how that is spread over the layers is the geometric mean of what all boxes with
such a processor measured. A planner finds the layers that one device seems to do well and another badly. Between processors of
one kind there are none: what looks like it is noise, and a plan built on it is slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgeswarm.model_costs import FloatArray

from .device import Device
from .profile_cache import Curve, Profiles

# Of a device's hardware: what its layers' times beside each other depend on. Clocks, quotas and boards make all of them quicker.
KIND_OF_PROCESSOR = ("machine", "cpu", "torch", "accelerator", "threads")


def with_alike_parts(profiles: Profiles, devices: Sequence[Device], *, dtype: str, parts: Sequence[str]) -> Profiles:
    """The profiles, with the curves of the model's parts spread likewise on all processors of one kind.

    parts: signatures of layers, or of stages, that together are the model; as often as it has them. Where one is missing or empty
    on some hardware, all are left as they are there.
    """
    counts = {mark: parts.count(mark) for mark in dict.fromkeys(parts)}
    curves = dict(profiles.curves)
    for keys in _alike(devices):
        known = {
            key: {mark: curve for mark in counts if (curve := profiles.curves.get((key, dtype, mark))) is not None}
            for key in keys
        }
        whole = {key: found for key, found in known.items() if len(found) == len(counts) and _all_measured(found)}
        for key, found in spread_alike(whole, counts).items():
            curves.update({(key, dtype, mark): curve for mark, curve in found.items()})
    return replace(profiles, curves=curves)


def _alike(devices: Sequence[Device]) -> list[list[str]]:
    """Hardware keys by kind of processor; devices that don't say what theirs is are like no other."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for device in devices:
        if device.accelerator == "cpu" and device.hardware.get("cpu"):
            keys = kinds.setdefault(tuple(device.hardware.get(what, "") for what in KIND_OF_PROCESSOR), [])
            if device.hardware_key not in keys:
                keys.append(device.hardware_key)
    return list(kinds.values())


def _all_measured(curves: Mapping[str, Curve]) -> bool:
    return all(curve.batch_sizes and min(map(sum, _pairs(curve))) > 0 for curve in curves.values())


def _pairs(curve: Curve) -> list[tuple[float, float]]:
    return list(zip(curve.forward_seconds, curve.backward_seconds, strict=True))


def spread_alike(curves: Mapping[str, Mapping[str, Curve]], counts: Mapping[str, int]) -> dict[str, dict[str, Curve]]:
    """curves: by hardware and part of the model, all of them measured. counts: how often the model has each part."""
    if len(curves) < 2:
        return {key: dict(found) for key, found in curves.items()}
    marks = list(counts)
    weights = np.array([counts[mark] for mark in marks], dtype=np.float64)
    sizes = sorted({size for found in curves.values() for curve in found.values() for size in curve.batch_sizes})
    factors: dict[str, dict[int, FloatArray]] = {key: {} for key in curves}
    for size in sizes:
        seconds = {
            key: np.array([_seconds_at(found[mark], size) for mark in marks], dtype=np.float64)
            for key, found in curves.items()
        }
        whole = {key: row for key, row in seconds.items() if not np.isnan(row).any()}
        if len(whole) < 2:
            continue
        spread = np.exp(np.mean([np.log(row / (weights @ row)) for row in whole.values()], axis=0))
        spread /= weights @ spread
        for key, row in whole.items():
            factors[key][size] = spread * (weights @ row) / row
    return {
        key: {mark: _scaled(found[mark], place, factors[key]) for place, mark in enumerate(marks)}
        for key, found in curves.items()
    }


def _seconds_at(curve: Curve, size: int) -> float:
    """Of forward and backward; between measured sizes along a power law, beyond them not a number."""
    if not curve.batch_sizes[0] <= size <= curve.batch_sizes[-1]:
        return math.nan
    sizes = np.log(curve.batch_sizes)
    return float(np.exp(np.interp(math.log(size), sizes, np.log([sum(pair) for pair in _pairs(curve)]))))


def _scaled(curve: Curve, place: int, factors: Mapping[int, FloatArray]) -> Curve:
    """By the factor of each of its sizes, or of the next smaller one that has one, or of the smallest."""
    if not factors:
        return curve
    of_sizes = [
        float(factors[max((size for size in factors if size <= own), default=min(factors))][place])
        for own in curve.batch_sizes
    ]
    return replace(
        curve,
        forward_seconds=tuple(f * s for f, s in zip(of_sizes, curve.forward_seconds, strict=True)),
        backward_seconds=tuple(f * s for f, s in zip(of_sizes, curve.backward_seconds, strict=True)),
    )
