"""Sums of layer times against whole stages run in one go, and the correction that is learned from where they differ. Pure.

layers   | a | b | c | d |        sum of the four, each timed alone
stage    |    a b c d    |        timed in one go: colder caches, less to call

stage = factor x sum + fixed      the factor goes onto all layers of the device, the fixed part onto each action
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.profile import ModelCosts

CHECKED_BATCHES = (4, 32)
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
_FEWEST_LAYERS = 3


@dataclass(frozen=True)
class CheckedStage:
    """Layers [first_layer, end_layer) that are timed in one go, at these batch sizes."""

    first_layer: int
    end_layer: int
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """Seconds of a stage at one batch size: the sum over its layers, and in one go."""

    summed: float
    whole: float


@dataclass(frozen=True)
class Correction:
    """whole = factor x summed + fixed_seconds. relative_error: root mean square of what is still missed."""

    factor: float = 1.0
    fixed_seconds: float = 0.0
    relative_error: float = 0.0


def stages_to_check(model: ModelCosts, *, largest_batch: int, memory_bytes: int) -> tuple[CheckedStage, ...]:
    """The two halves of the model by computing, and the whole; those whose smallest batch fits half of a device's memory.

    memory_bytes: of the smallest device on which they are to run.
    """
    if model.layer_count < _FEWEST_LAYERS:
        return ()
    flops = np.cumsum([1.0 + (layer.flops_forward or 0.0) for layer in model.layers])
    middle = min(max(1, int(np.searchsorted(flops, flops[-1] / 2)) + 1), model.layer_count - 1)
    found = []
    for first, end in ((0, middle), (middle, model.layer_count), (0, model.layer_count)):
        least = model.least_batch(first, end)
        sizes = sorted({max(least, min(size, largest_batch)) for size in CHECKED_BATCHES})
        # The device itself judges whether the larger ones fit, from what the smallest takes.
        if 2 * _bytes(model, first, end, sizes[0]) <= memory_bytes:
            found.append(CheckedStage(first, end, tuple(sizes)))
    return tuple(found)


def learn_correction(comparisons: Sequence[Comparison]) -> Correction:
    """The line that is nearest by relative squares; neither its factor nor its fixed part leaves what is plausible.

    From stages of about one length the fixed part can't be told from the factor: then it is 0.
    """
    usable = [each for each in comparisons if each.summed > 0 and each.whole > 0]
    if not usable:
        return Correction()
    summed = np.array([each.summed for each in usable])
    whole = np.array([each.whole for each in usable])
    fixed = 0.0
    if summed.max() >= 2 * summed.min():
        columns = np.stack([summed / whole, 1.0 / whole], axis=1)
        factor, fixed = np.linalg.lstsq(columns, np.ones(len(usable)), rcond=None)[0].tolist()
    if fixed <= 0.0 or not LEAST_FACTOR <= factor <= MOST_FACTOR:
        fixed = 0.0
        factor = float(np.sum(summed / whole) / np.sum((summed / whole) ** 2))
    factor = min(max(factor, LEAST_FACTOR), MOST_FACTOR)
    missed = (factor * summed + fixed) / whole - 1.0
    return Correction(factor, fixed, float(np.sqrt(np.mean(missed**2))))


def _bytes(model: ModelCosts, first: int, end: int, samples: int) -> int:
    return 2 * model.param_bytes(first, end) + model.saved_bytes(first, end) * samples
