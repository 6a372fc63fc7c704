"""Sums of layer times against whole stages run in one go, and the correction that is learned from where they differ. Pure.

layers   | a | b | c | d |        sum of the four, each timed alone
stage    |    a b c d    |        timed in one go: one call instead of four, but colder caches

stage = factor x sum      a factor for each batch size that was tried: what calls cost shows in small batches, caches in large
                          ones. In between it goes with the logarithm of the batch size, beyond them it stays.
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

    batch_size: int
    summed: float
    whole: float


@dataclass(frozen=True)
class Correction:
    """whole = factor at the batch size x summed. relative_error: root mean square of what is still missed.

    batch_sizes: rising; none where nothing was learned.
    """

    batch_sizes: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    relative_error: float = 0.0

    def factor(self, batch_size: int) -> float:
        if not self.batch_sizes:
            return 1.0
        return float(np.interp(np.log(batch_size), np.log(self.batch_sizes), self.factors))


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
    """For each batch size the factor that is nearest by relative squares; none leaves what is plausible."""
    usable = [each for each in comparisons if each.summed > 0 and each.whole > 0]
    sizes = sorted({each.batch_size for each in usable})
    factors = tuple(_factor([each for each in usable if each.batch_size == size]) for size in sizes)
    found = Correction(tuple(sizes), factors)
    missed = [found.factor(each.batch_size) * each.summed / each.whole - 1.0 for each in usable]
    error = float(np.sqrt(np.mean(np.square(missed)))) if missed else 0.0
    return Correction(found.batch_sizes, found.factors, error)


def _factor(comparisons: Sequence[Comparison]) -> float:
    parts = np.array([each.summed / each.whole for each in comparisons])
    return float(np.clip(np.sum(parts) / np.sum(parts**2), LEAST_FACTOR, MOST_FACTOR))


def _bytes(model: ModelCosts, first: int, end: int, samples: int) -> int:
    return 2 * model.param_bytes(first, end) + model.saved_bytes(first, end) * samples
