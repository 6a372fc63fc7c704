"""Sums of layer times against whole stages run in one go, and the correction that is learned from where they differ. Pure.

layers   | a | b | c | d |        sum of the four, each timed alone
parts    |  a b  |  c d  |        timed in one go: one call instead of two, but colder caches
whole    |    a b c d    |        colder still

part = factor x sum       a factor for each part of the model and each batch size that was tried: what calls cost shows in small
                          batches, caches in large ones, and most where a layer's weights are many. In between it goes with the
                          logarithm of the batch size, beyond them it stays.

The parts say how the factors are spread, the whole how large they are: what a training comes back to, the backward of a
micro-batch or the next one, has left the caches, as it has in the whole model, but not in a part of it that is timed again and
again. An emulated nano took a quarter more for all of MobileNetV2 with 64 samples than for its four parts one by one, and in
trainings what the whole said, in pipelines too. With few samples at once what a stage of a pipeline comes back to may be there
still: halfway between both is what trainings with 16 and 32 samples took, and farther off by no more than a quarter.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model_costs import FloatArray, ModelCosts

# Calls count in the first, and weights, which a layer by itself finds in the caches: of BERT-small one sample at a time took a
# sixth more than what was learned from four said. Caches count in the last, which is about what trainings have: there an emulated
# nano took a quarter more of its processor than what was learned from the smaller ones said.
CHECKED_BATCHES = (1, 4, 32, 128)
CHECKED_PARTS = 4
# Of the whole model a small device may not do the largest in the time that a batch may take.
_WHOLE_BATCHES = (1, 4, 32, 64, 128)
# From so many samples on all of it counts, below them half.
_WHOLE_COUNTS_FROM = 64
# By which power of the ratio of samples: half of what the whole took more with a fourth of them. Below the size above that is
# weights that come from memory, which all samples share; a small device times a large model with one or four samples alone.
_FEWER_SAMPLES_SAY = 0.5
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
_FEWEST_LAYERS = 3
# By which weight a part's factor is drawn to that of all parts, beside 1 for each stage that was timed: noise is not followed.
_DRAWN = 0.3


@dataclass(frozen=True)
class CheckedStage:
    """Layers [first_layer, end_layer) that are timed in one go, at these batch sizes."""

    first_layer: int
    end_layer: int
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """A stage at one batch size. layers: seconds of each of its layers, timed alone. whole: seconds of all in one go."""

    first_layer: int
    batch_size: int
    layers: tuple[float, ...]
    whole: float

    @property
    def end_layer(self) -> int:
        return self.first_layer + len(self.layers)


@dataclass(frozen=True)
class Correction:
    """seconds in a stage = factor x seconds alone, by batch size and part of the model.

    batch_sizes: rising; none where nothing was learned. cuts: the parts are the layers between two that follow one another; the
    first part is taken for what is before it, too, and the last one for what is behind it. factors[i][part]: at batch_sizes[i].
    relative_error: root mean square of what is still missed.
    """

    batch_sizes: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()
    factors: tuple[tuple[float, ...], ...] = ()
    relative_error: float = 0.0

    def of_layers(self, batch_size: int, layer_count: int) -> FloatArray:
        """[layer_count]: the factor of each layer."""
        if not self.batch_sizes:
            return np.ones(layer_count)
        logarithms, wanted = np.log(self.batch_sizes), np.log(batch_size)
        by_part = np.array([np.interp(wanted, logarithms, column) for column in zip(*self.factors, strict=True)])
        part_of = np.searchsorted(self.cuts[1:-1], np.arange(layer_count), side="right")
        found: FloatArray = by_part[part_of]
        return found


@dataclass(frozen=True)
class _Fitted:
    """What was learned at a batch size, before the whole's level. shares[stage, part], factors[part]."""

    stages: tuple[Comparison, ...]
    shares: FloatArray
    factors: FloatArray


def stages_to_check(model: ModelCosts, *, largest_batch: int) -> tuple[CheckedStage, ...]:
    """Parts of the model that take about as long, and the whole with smaller batches, wherever they fit."""
    count = model.layer_count
    if count < _FEWEST_LAYERS:
        return ()
    # A layer takes time by its FLOPs, and some whatever they are.
    flops = np.array([1.0 + (layer.flops_forward or 0.0) for layer in model.layers])
    reached = np.cumsum(flops / flops.sum() + 1.0 / count) / 2
    cuts = [1 + int(np.searchsorted(reached, part / CHECKED_PARTS)) for part in range(1, CHECKED_PARTS)]
    ends = sorted({0, *(min(cut, count) for cut in cuts), count})
    # A layer alone needs no check: that is how it is timed anyway.
    parts = [(first, end) for first, end in itertools.pairwise(ends) if end - first > 1]
    found = []
    for first, end in dict.fromkeys([*parts, (0, count)]):
        least = model.least_batch(first, end)
        tried = _WHOLE_BATCHES if end - first == count and parts else CHECKED_BATCHES
        sizes = sorted({max(least, min(size, largest_batch)) for size in tried})
        found.append(CheckedStage(first, end, tuple(sizes)))
    return tuple(found)


def least_memory_bytes(model: ModelCosts, stage: CheckedStage) -> int:
    """What a device is to have for the stage to be timed there: its smallest batch fits half of it.

    The device itself judges whether the larger ones fit, from what the smallest takes.
    """
    return 2 * _bytes(model, stage.first_layer, stage.end_layer, stage.batch_sizes[0])


def learn_correction(comparisons: Sequence[Comparison]) -> Correction:
    """For each batch size the parts' factors that are nearest by relative squares, all of them brought to what the whole took, or
    halfway; where it wasn't timed with so many samples, to what it took with fewer, and less so the fewer they were below
    _WHOLE_COUNTS_FROM. None leaves what is plausible.
    """
    usable = [each for each in comparisons if sum(each.layers) > 0 and each.whole > 0]
    if not usable:
        return Correction()
    sizes = sorted({each.batch_size for each in usable})
    cuts = tuple(sorted({cut for each in usable for cut in (each.first_layer, each.end_layer)}))
    factors = []
    missed: list[float] = []
    level, level_size = 1.0, sizes[0]
    before: _Fitted | None = None
    for size in sizes:
        of_size = [each for each in usable if each.batch_size == size]
        rows = np.array([_shares(each, cuts) for each in of_size])
        found = _factors(rows, _expected(of_size, rows, before))
        before = _Fitted(tuple(of_size), rows, found)
        is_whole = [each.first_layer == cuts[0] and each.end_layer == cuts[-1] for each in of_size]
        if any(is_whole):
            level, level_size = 1.0 / float(np.mean((rows @ found)[is_whole])), size
        counted = level
        if level_size < _WHOLE_COUNTS_FROM:
            counted = 1.0 + (level - 1.0) * (level_size / size) ** _FEWER_SAMPLES_SAY
        counted = counted if size >= _WHOLE_COUNTS_FROM else counted**0.5
        found = np.clip(counted * found, LEAST_FACTOR, MOST_FACTOR)
        factors.append(tuple(found.tolist()))
        missed += (rows @ found - 1.0).tolist()
    return Correction(tuple(sizes), cuts, tuple(factors), float(np.sqrt(np.mean(np.square(missed)))))


def _shares(comparison: Comparison, cuts: Sequence[int]) -> list[float]:
    """[parts]: the sum of a part's layers, as a part of what the stage took in one go."""
    first, end = comparison.first_layer, comparison.end_layer
    return [
        sum(comparison.layers[begin - first : stop - first]) / comparison.whole
        if first <= begin and stop <= end
        else 0.0
        for begin, stop in itertools.pairwise(cuts)
    ]


def _expected(stages: Sequence[Comparison], shares: FloatArray, before: _Fitted | None) -> FloatArray:
    """[parts]: what a part's factor is drawn to: what is common to all that was timed. Where it wasn't timed by itself, which
    takes small devices too long, halfway from there to its factor with fewer samples, changed as that of the others has.

    An emulated nano timed the last quarter of ResNet-50 with 4 samples (1.6 times its layers), and with 32 two other quarters
    alone (1.0); with 29 in trainings it took 1.2 times what was common. What larger devices timed is between both, too.
    """
    expected = np.full(shares.shape[1], _common(shares))
    if before is None:
        return expected
    again = {(each.first_layer, each.end_layer) for each in before.stages}
    again &= {(each.first_layer, each.end_layer) for each in stages}
    if again:
        changed = _common(_rows_of(again, stages, shares)) / _common(_rows_of(again, before.stages, before.shares))
        by_itself = (shares[(shares > 0).sum(axis=1) == 1] > 0).any(axis=0)
        expected = np.where(by_itself, expected, np.sqrt(expected * changed * before.factors))
    return expected


def _rows_of(spans: Collection[tuple[int, int]], stages: Sequence[Comparison], shares: FloatArray) -> FloatArray:
    return shares[[(each.first_layer, each.end_layer) in spans for each in stages]]


def _common(shares: FloatArray) -> float:
    """The factor that all stages together say."""
    sums = shares.sum(axis=1)
    return float(sums.sum() / np.square(sums).sum())


def _factors(shares: FloatArray, expected: FloatArray) -> FloatArray:
    """[parts]. shares[stage, part]: times the factors, their sum should be 1 for each stage. expected: what they are drawn to."""
    parts = shares.shape[1]
    rows = np.vstack([shares, _DRAWN * np.eye(parts)])
    wanted = np.concatenate([np.ones(len(shares)), _DRAWN * expected])
    found: FloatArray = np.clip(np.linalg.lstsq(rows, wanted, rcond=None)[0], LEAST_FACTOR, MOST_FACTOR)
    return found


def _bytes(model: ModelCosts, first: int, end: int, samples: int) -> int:
    weights = model.param_bytes(first, end) + model.trained_bytes(first, end)
    return weights + model.saved_bytes(first, end) * samples
