"""A layer's seconds at any batch size, from those at the batch sizes that were measured. Pure.

In between, the curve is a straight line in seconds; before the first size it goes on with its first slope, but never faster
than in proportion; beyond the last size it goes on with care:

    seconds            . .  the steepest of: the last slope, the mean slope, a part of proportional growth
      |            o--'
      |      o----'
      |   o-'
      | .'  first slope, at least t(b0) * b / b0
      +---+--+-----+------ samples
          b0

Where more samples take far less, since another kernel begins there, nobody knows where between the two: up to the larger size
the slope before it goes on. Beyond the last size only what is behind the last such cliff counts; a single point there means
proportional growth.

The last slope alone is noise where the last two sizes are close, and 0 where a fit pooled them. Of 500 measured curves without
their largest size, a fourfold step further, these three missed it by 26 % (root mean square), with forecasts that in sum were
2 % too low; the last slope by 27 %, 6 % too low. For an eightfold step: 46 %, 3 % too high; the last slope 60 %, 14 % too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .model_costs import FloatArray, IntArray

CLIFF = 1.35  # what takes so many times as long as the next size measured stands before one
LEAST_GROWTH = 0.25  # of the best seconds per sample: a curve that looks flat to its end was not seen to stay so
# Of a layer's seconds, for each doubling beyond its largest measured size: by what those curves were missed.
ERROR_OF_A_DOUBLING = 0.13


def layer_seconds(sizes: Sequence[int], rows: FloatArray, batches: IntArray) -> FloatArray:
    """[batches, layers] in seconds; 0 samples take no time.

    sizes: measured batch sizes, rising, in samples. rows: [sizes, layers] in seconds. Raises ValueError for a batch below 0.
    """
    if len(batches) and batches.min() < 0:
        raise ValueError(f"a batch of {batches.min()} samples")
    at = np.array(sizes, dtype=np.float64)
    result: FloatArray
    if len(at) == 1:
        result = rows[0] * (batches / at[0])[:, np.newaxis]
        return result
    result = np.zeros((len(batches), rows.shape[1]))
    before, beyond = (batches > 0) & (batches < at[0]), batches > at[-1]
    inside = (batches >= at[0]) & ~beyond
    slopes = np.diff(rows, axis=0) / np.diff(at)[:, np.newaxis]
    result[inside] = _between(at, rows, slopes, batches[inside])
    if before.any():
        few = batches[before].astype(np.float64)[:, np.newaxis]
        result[before] = np.clip(rows[0] - slopes[0] * (at[0] - few), rows[0] * (few / at[0]), rows[0])
    if beyond.any():
        more = (batches[beyond] - at[-1])[:, np.newaxis]
        result[beyond] = rows[-1] + _slope_beyond(at, rows, slopes) * more
    return result


def extrapolation_error(largest: FloatArray | IntArray, samples: int) -> FloatArray:
    """[layers]: by which part seconds may be off since nobody measured that many samples, one standard error.

    largest: [layers] the largest batch sizes that were measured.
    """
    error: FloatArray = ERROR_OF_A_DOUBLING * np.log2(np.maximum(samples / largest, 1.0))
    return error


def _between(at: FloatArray, rows: FloatArray, slopes: FloatArray, batches: IntArray) -> FloatArray:
    above = np.maximum(np.searchsorted(at, batches), 1)
    below = above - 1
    part = ((batches - at[below]) / (at[above] - at[below]))[:, np.newaxis]
    result: FloatArray = rows[below] * (1 - part) + rows[above] * part
    is_cliff = (rows[:-1] > CLIFF * rows[1:])[below] & (part < 1)
    if is_cliff.any():
        climb = np.maximum(np.concatenate([rows[:1] / at[0], slopes[:-1]]), 0.0)
        result = np.where(is_cliff, rows[below] + climb[below] * (batches - at[below])[:, np.newaxis], result)
    return result


def _slope_beyond(at: FloatArray, rows: FloatArray, slopes: FloatArray) -> FloatArray:
    """[layers]: seconds for each further sample."""
    is_cliff = rows[:-1] > CLIFF * rows[1:]
    # The first point behind the last cliff; 0 without any.
    first = np.where(is_cliff.any(axis=0), len(at) - 1 - np.argmax(is_cliff[::-1], axis=0), 0)
    span = at[-1] - at[first]
    rise = rows[-1] - rows[first, np.arange(rows.shape[1])]
    mean = np.where(span > 0, rise / np.where(span > 0, span, 1.0), rows[-1] / at[-1])
    proportional = (rows / at[:, np.newaxis]).min(axis=0)
    slope: FloatArray = np.maximum.reduce([slopes[-1], mean, LEAST_GROWTH * proportional])
    return slope
