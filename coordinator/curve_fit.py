"""From measured seconds by batch size to a curve without noise, with an estimate of its error. Pure.

    measured    o      o  <- a hiccup, far above the line over its neighbours: taken out, filled in from them
                   o        o
                     o  o <- falls a little: noise; both become their mean (isotonic regression)
    fitted      o--o--o==o--o

The best curve that doesn't fall is the likeliest one under noise (Barlow et al., Statistical Inference under Order
Restrictions). Errors count in proportion to the seconds.

More samples may take less time all the same: libraries have other kernels for larger batches. 8 samples of a 1x1 convolution on
2 x 2 pixels took five times what 16 took, whenever it was tried. Where a curve falls far between two points whose repeats agree
it is a cliff, and either side of it is a curve of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.layer_curves import CLIFF
from edgeswarm.model_costs import FloatArray

HICCUP = CLIFF  # times the next larger batch's seconds
STEADY_ERROR = 0.1  # repeats that agree so well were not disturbed


@dataclass(frozen=True)
class FittedCurve:
    """seconds: by batch size, falling at cliffs only. relative_error: root mean square of what the fit moved, as a part."""

    seconds: tuple[float, ...]
    relative_error: float


def fit_curve(
    batch_sizes: Sequence[int], seconds: Sequence[float], relative_errors: Sequence[float] = ()
) -> FittedCurve:
    """The curve through measured points, as many as there were. batch_sizes: rising, in samples.

    relative_errors: of the points, by their repeats; 0 for one that was measured once. Without them there are no cliffs.
    Raises ValueError where the two differ in length.
    """
    if len(batch_sizes) != len(seconds):
        raise ValueError(f"{len(batch_sizes)} batch sizes, but {len(seconds)} times")
    if not seconds:
        return FittedCurve((), 0.0)
    sizes = np.array(batch_sizes, dtype=np.float64)
    measured = np.array(seconds, dtype=np.float64)
    bounds = [0, *cliffs(seconds, relative_errors), len(seconds)]
    parts = [_fit(sizes[begin:end], measured[begin:end]) for begin, end in itertools.pairwise(bounds)]
    missed = np.concatenate([missed for _, missed in parts])
    return FittedCurve(
        tuple(np.concatenate([fitted for fitted, _ in parts]).tolist()), float(np.sqrt(np.mean(missed**2)))
    )


def _fit(sizes: FloatArray, measured: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A curve that never falls, and by which part it misses the points that are no hiccups."""
    kept = ~hiccups(measured)
    filled = np.interp(sizes, sizes[kept], measured[kept])
    weights = np.where(kept, 1.0, 1e-3) / np.maximum(filled, 1e-12) ** 2
    fitted = isotonic(filled, weights)
    return fitted, ((fitted - measured) / np.maximum(measured, 1e-12))[kept]


def cliffs(seconds: Sequence[float], relative_errors: Sequence[float]) -> list[int]:
    """Where a new curve begins: the points behind a fall that no hiccup explains."""
    steady = [0 < error <= STEADY_ERROR for error in relative_errors]
    return [
        place
        for place in range(1, len(steady))
        if steady[place - 1] and steady[place] and seconds[place - 1] > HICCUP * seconds[place]
    ]


def hiccups(seconds: FloatArray) -> np.typing.NDArray[np.bool_]:
    """Which points are no noise, but disturbed: that much slower than a larger batch. The last one can't be judged."""
    quickest_above = np.append(np.minimum.accumulate(seconds[::-1])[::-1][1:], np.inf)
    found: np.typing.NDArray[np.bool_] = seconds > HICCUP * quickest_above
    return found


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The values that never fall and are nearest by weighted squares: neighbours that fall are pooled to their mean."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_count), (high, high_weight, high_count) = pools.pop(), pools.pop()
            both = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / both
            # The mean of two rounded numbers may lie an ulp outside of them.
            pools.append((min(max(mean, low), high), both, low_count + high_count))
    return np.repeat(np.array([mean for mean, _, _ in pools]), [count for _, _, count in pools])
