"""A second look at layers, some while after the first: what was in the way then rarely is again. Pure.

    first look    | a | b |### c ###| d | ...               # something else had the machine for a second
    second look                              | a | b | c | d |

All sizes of a layer are timed within a moment. What the machine did then is in its whole curve, and in those of all layers like
it; its repeats agree, and don't show it. A planner, which looks for what is cheap, would give such layers to other devices, or
take them. So both looks count, by their geometric mean, at the sizes that were looked at again and about them; where they are far
apart, the quicker one does, since what disturbs that much makes it longer. What takes next to nothing isn't looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .layer_timing import Timing

# Times the quicker look.
FAR_APART = 1.5
# Of what all distinct layers take together, a sample each.
LITTLE = 0.02


def takes_little(curves: Mapping[str, Sequence[Timing]]) -> set[str]:
    """Of layers by signature those that take next to nothing beside the others, by their largest batches, or have no curve."""
    of_sample = {
        mark: max(timings, key=lambda timing: timing.batch_size) for mark, timings in curves.items() if timings
    }
    seconds = {mark: timing.seconds / timing.batch_size for mark, timing in of_sample.items()}
    least = LITTLE * sum(seconds.values())
    return {mark for mark in curves if mark not in seconds or seconds[mark] < least}


def sizes_to_look_at(timings: Sequence[Timing], *, largest_alone: bool = False) -> list[int]:
    """A middle batch and the largest of a curve, rising; less where it has less, and of a stage, each pair of which is long."""
    sizes = sorted(timing.batch_size for timing in timings)
    if largest_alone:
        return sizes[-1:]
    return sorted({sizes[len(sizes) // 2], sizes[-1]}) if sizes else []


def after_second_look(first: Sequence[Timing], second: Sequence[Timing]) -> list[Timing]:
    """The first look's curve, moved towards the second one's. Memory and errors are the first one's."""
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
    """On the first look's seconds."""
    if not (first > 0 and second > 0):
        return 1.0
    apart = second / first
    return min(apart, 1.0) if max(apart, 1 / apart) > FAR_APART else math.sqrt(apart)


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
