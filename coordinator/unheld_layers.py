"""What a layer that some hardware can't hold would take there, so that a planner may give it the others. Pure.

seconds of layer     a     b     c     d
nx                  1.0   3.0   9.0   1.0
nano                4.0   8.0    -    4.0     16 for what took the nx 5: 3.2 times as long
nano, as planned    4.0   8.0  28.8   4.0     and its memory doesn't hold c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgeswarm.profile import PlanningInstance

from .planner.passing_memory import passing_of_runs
from .profile_cache import Curve


def with_guesses(curves: Mapping[str, Sequence[Curve]]) -> dict[str, list[Curve]]:
    """The same with a curve for each layer: those that are empty are guessed.

    curves: by hardware, of the layers in their order. Hardware with a layer of which nothing is known is left out.
    """
    found = {}
    for key, own in curves.items():
        others = [other for name, other in curves.items() if name != key]
        filled = [
            curve if curve.batch_sizes else _guessed(own, layer, others=others) for layer, curve in enumerate(own)
        ]
        known = [curve for curve in filled if curve is not None]
        if len(known) == len(filled):
            found[key] = known
    return found


def _guessed(own: Sequence[Curve], layer: int, *, others: Sequence[Sequence[Curve]]) -> Curve | None:
    """As of the hardware with which this one has the most layers in common, by how much slower it is for these."""
    most, like, ratio = 0, None, 1.0
    for other in others:
        if not other[layer].batch_sizes:
            continue
        pairs = [pair for a, b in zip(own, other, strict=True) if (pair := _seconds_at_one_size(a, b)) is not None]
        mine, theirs = (sum(seconds) for seconds in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        if len(pairs) > most and mine > 0 and theirs > 0:
            most, like, ratio = len(pairs), other[layer], mine / theirs
    if like is None:
        return None
    # Nothing of it was seen here, and of memory nothing is guessed.
    return replace(
        like,
        forward_seconds=tuple(ratio * seconds for seconds in like.forward_seconds),
        backward_seconds=tuple(ratio * seconds for seconds in like.backward_seconds),
        peak_bytes=(),
        held_sample_bytes=0.0,
    )


def _seconds_at_one_size(curve: Curve, other: Curve) -> tuple[float, float] | None:
    """Of both, at the largest batch size that both have."""
    sizes = set(curve.batch_sizes) & set(other.batch_sizes)
    if not sizes:
        return None
    largest = max(sizes)
    mine, theirs = (
        each.forward_seconds[place] + each.backward_seconds[place]
        for each in (curve, other)
        for place in (each.batch_sizes.index(largest),)
    )
    return mine, theirs


def seems_to_hold(instance: PlanningInstance, name: str, layer: int) -> bool:
    """Whether a plan could give a device this layer, alone or with some around it, by what the planner knows of memory.

    With others it may need less: a small cut behind them, of which a frame waits.
    """
    device = instance.devices[instance.index_of[name]]
    model = instance.model
    first, end = (
        each.ravel() for each in np.meshgrid(np.arange(layer + 1), np.arange(layer + 1, model.layer_count + 1))
    )
    of_a_sample = model.saved_bytes_before[end] - model.saved_bytes_from[first]
    needed = (
        instance.resident_bytes_of_runs(first, end) + of_a_sample + passing_of_runs(instance, first, end).bytes_of(1)
    )
    return bool(np.min(needed) + device.base_bytes <= device.memory_bytes)
