"""At which batch sizes a layer is timed: few, and more only where a straight line between them misses. Pure.

seconds                                       1. the smallest, a middle one, the largest
  |                            ...o           2. does the line over a middle point's neighbours meet it? then done
  |                     ..o''''               3. else a point more on both sides of it, and so on
  |          ? ..o''''
  |    o''''
  +----+----+----+--------+-------+ samples
       1    4   16       64      256
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST_POINTS = 3
MOST_POINTS = 6
LINE_MISSES = 0.12  # of the measured seconds: noise of a few repeats is taken for no bend


def first_choice(candidates: Sequence[int]) -> tuple[int, ...]:
    """The sizes with which every curve begins, rising. candidates: rising, in samples."""
    if len(candidates) <= FIRST_POINTS:
        return tuple(candidates)
    return (candidates[0], candidates[len(candidates) // 2], candidates[-1])


def next_batch(measured: Sequence[tuple[int, float]], candidates: Sequence[int]) -> int | None:
    """The size to time next, None where the curve is known well enough. measured: (samples, seconds), rising.

    Goes up through `first_choice`; then halves, by ratio, the intervals beside the point which the line misses by most.
    """
    done = {size for size, _ in measured}
    ahead = [size for size in first_choice(candidates) if size not in done]
    if ahead:
        return ahead[0]
    if len(measured) >= MOST_POINTS:
        return None
    bends = sorted(
        ((_miss(measured, place), place) for place in range(1, len(measured) - 1)), key=lambda bend: (-bend[0], bend[1])
    )
    for miss, place in bends:
        if miss <= LINE_MISSES:
            break
        for first, last in ((place, place + 1), (place - 1, place)):
            between = _between(measured[first][0], measured[last][0], candidates)
            if between is not None:
                return between
    return None


def smaller_choice(wanted: int, measured: Sequence[tuple[int, float]], candidates: Sequence[int]) -> int | None:
    """The next size down that is not measured, where `wanted` can't be; None where none is above the largest measured."""
    largest = max((size for size, _ in measured), default=0)
    return max((size for size in candidates if largest < size < wanted), default=None)


def expected_seconds(measured: Sequence[tuple[int, float]], batch_size: int) -> float:
    """What a size beyond the largest measured will take: in proportion, or along the last two, whichever is less."""
    if not measured:
        return 0.0
    size, seconds = measured[-1]
    proportional = seconds * batch_size / size
    if len(measured) < 2:
        # One small batch is mostly what is there for any batch: a line through nothing would end every curve at once.
        return seconds
    before_size, before = measured[-2]
    along = seconds + (seconds - before) / (size - before_size) * (batch_size - size)
    return min(proportional, max(along, seconds))


def _miss(measured: Sequence[tuple[int, float]], place: int) -> float:
    """By which part of its seconds a point lies off the line over its neighbours."""
    (before, low), (size, seconds), (after, high) = measured[place - 1 : place + 2]
    line = low + (high - low) * (size - before) / (after - before)
    return abs(line - seconds) / seconds if seconds > 0 else 0.0


def _between(first: int, last: int, candidates: Sequence[int]) -> int | None:
    inside = [size for size in candidates if first < size < last]
    middle = (first * last) ** 0.5
    return min(inside, key=lambda size: abs(size - middle), default=None)
