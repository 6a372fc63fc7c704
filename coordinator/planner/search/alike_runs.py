"""Runs of layers that cost the same: the same kinds of layers in the same order, behind the same cut.

A transformer's blocks are such: what is worked out for some of them holds for as many anywhere else, so that it isn't searched
again. The first that is asked for stands for all:

    embed | block block block block block | head
            |---------|                            worked out
                  |---------|   |---------|        looked up

Layers are of one kind where a model's costs and every profile say the same of them, their names aside. A run with the model's
first or last layer is like no other (frames, samples and the loss are not as elsewhere), and so is a layer with a tied parameter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeswarm.model_costs import FloatArray
from edgeswarm.profile import DeviceProfile, PlanningInstance

# Of a number's digits, in bits, how many count: those of curves that were fitted apart differ in the last.
_BITS = 30


class AlikeRuns:
    """Of one instance's model."""

    def __init__(self, instance: PlanningInstance) -> None:
        self._kinds = kinds_of_layers(instance)
        self._has_none = len(set(self._kinds)) == len(self._kinds)
        model = instance.model
        self._before = list(zip(model.cut_bytes.tolist(), model.answered_bytes.tolist(), strict=True))
        self._stands_for: dict[object, tuple[int, int]] = {}
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def representative(self, first: int, end: int) -> tuple[int, int]:
        """Of layers [first, end): the run that stands for all that are like it, itself among them."""
        run = (first, end)
        if self._has_none or first == 0 or end == len(self._kinds):
            return run
        if run not in self._known:
            likeness = (self._before[first], self._kinds[first:end])
            self._known[run] = self._stands_for.setdefault(likeness, run)
        return self._known[run]


def kinds_of_layers(instance: PlanningInstance) -> tuple[int, ...]:
    """By layer: the same number for those that cost the same, on every class of device."""
    tied = {layer for tensor in instance.model.tied for layer in tensor.layers}
    profiled = [_by_layer(profile) for profile in instance.profiles.values()]
    found: dict[object, int] = {}
    kinds = []
    for place, layer in enumerate(instance.model.layers):
        costs = (replace(layer, name=""), *(of_layers[place] for of_layers in profiled))
        kinds.append(found.setdefault(place if place in tied else costs, len(found)))
    return tuple(kinds)


def _by_layer(profile: DeviceProfile) -> list[bytes]:
    """Of each layer all that a planner is told of it alone."""
    of_layers = (profile.update_seconds, profile.largest_measured, profile.rest_parts, profile.weights_parts)
    told = [*profile.forward_seconds, *profile.backward_seconds, *(values for values in of_layers if values)]
    return [layer.tobytes() for layer in _without_last_digits(np.array(told, dtype=np.float64)).T]


def _without_last_digits(values: FloatArray) -> FloatArray:
    digits, exponents = np.frexp(values)
    result: FloatArray = np.ldexp(np.round(digits * 2**_BITS), exponents)
    return result
