"""From measured seconds by batch size to a curve that never falls, with an estimate of its error. Pure.

    measured    o      o  <- a hiccup, far above the line over its neighbours: taken out, filled in from them
                   o        o
                     o  o <- falls a little: noise; both become their mean (isotonic regression)
    fitted      o--o--o==o--o

More samples never take less time, so that the best curve that doesn't fall is the likeliest one under noise (Barlow et al.,
Statistical Inference under Order Restrictions). Errors count in proportion to the seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.profile import FloatArray

HICCUP = 1.35  # times the next larger batch's seconds


@dataclass(frozen=True)
class FittedCurve:
    """seconds: by batch size, never falling. relative_error: root mean square of what the fit moved, as a part of them."""

    seconds: tuple[float, ...]
    relative_error: float


def fit_curve(batch_sizes: Sequence[int], seconds: Sequence[float]) -> FittedCurve:
    """The curve through measured points, as many as there were. batch_sizes: rising, in samples.

    Raises ValueError where the two differ in length.
    """
    if len(batch_sizes) != len(seconds):
        raise ValueError(f"{len(batch_sizes)} batch sizes, but {len(seconds)} times")
    if not seconds:
        return FittedCurve((), 0.0)
    sizes = np.array(batch_sizes, dtype=np.float64)
    measured = np.array(seconds, dtype=np.float64)
    kept = ~hiccups(measured)
    filled = np.interp(sizes, sizes[kept], measured[kept])
    weights = np.where(kept, 1.0, 1e-3) / np.maximum(filled, 1e-12) ** 2
    fitted = isotonic(filled, weights)
    error = float(np.sqrt(np.mean(((fitted - measured) / np.maximum(measured, 1e-12))[kept] ** 2)))
    return FittedCurve(tuple(fitted.tolist()), error)


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
