"""A second look at layers, some while after the first: what was in the way then rarely is again. Pure.

    first look    | a | b |### c ###| d | ...               # something else had the machine for a second
    second look                              | a | b | c | d |

All sizes of a layer are timed within a moment. Other work then is in its whole curve, and in those of all layers like it; its
repeats agree, and don't show it. A planner, which looks for what is cheap, would give such layers to other devices. What
disturbs only ever makes it longer: of the two looks the quicker one counts, at the sizes that were looked at again and about
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .layer_timing import Timing

# Less than this is no disturbance, but what repeats scatter by.
LEAST_GAIN = 0.03


def sizes_to_look_at(timings: Sequence[Timing]) -> list[int]:
    """A middle batch and the largest of a curve, rising; less where it has less."""
    sizes = sorted(timing.batch_size for timing in timings)
    return sorted({sizes[len(sizes) // 2], sizes[-1]}) if sizes else []


def after_second_look(first: Sequence[Timing], second: Sequence[Timing]) -> list[Timing]:
    """The first look's curve, quicker where the second one was. Memory and errors are the first one's."""
    again = {timing.batch_size: timing.seconds for timing in second}
    factors = {
        timing.batch_size: _factor(timing.seconds, again[timing.batch_size])
        for timing in first
        if timing.batch_size in again
    }
    scaled = []
    for timing in first:
        factor = _between(factors, timing.batch_size)
        seconds = (factor * timing.forward_seconds, factor * timing.backward_seconds)
        scaled.append(replace(timing, forward_seconds=seconds[0], backward_seconds=seconds[1]))
    return scaled


def _factor(first: float, second: float) -> float:
    return second / first if 0 < second < (1 - LEAST_GAIN) * first else 1.0


def _between(factors: Mapping[int, float], batch_size: int) -> float:
    """By the ratio of sizes between two that were looked at; beyond them as at the next one."""
    if not factors:
        return 1.0
    below = max((size for size in factors if size <= batch_size), default=min(factors))
    above = min((size for size in factors if size >= batch_size), default=max(factors))
    if below == above or not below < batch_size < above:
        return factors[below if below <= batch_size else above]
    part = math.log(batch_size / below) / math.log(above / below)
    return factors[below] + part * (factors[above] - factors[below])
