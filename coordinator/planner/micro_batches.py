"""Which micro-batch sizes are worth trying. The paper takes B as given; here the planner tries several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

MOST_SIZES = 12


def micro_batch_sizes(mini_batch: int, *, least_batch: int = 1, most: int = MOST_SIZES) -> tuple[int, ...]:
    """Sizes to try, largest first: divisors of the mini-batch; where these are few, powers of two that leave a rest.

    least_batch: the largest least batch of any layer; sizes below it, or that leave a rest below it, are left out, a power of
    two for the next size below.
    """
    divisors = {size for size in range(1, mini_batch + 1) if mini_batch % size == 0}
    allowed = {size for size in divisors if _respects(size, mini_batch, least_batch)}
    if len(divisors) < 4:
        for power in (2**exponent for exponent in range(mini_batch.bit_length())):
            near = (size for size in range(power, power // 2, -1) if _respects(size, mini_batch, least_batch))
            allowed |= set(itertools.islice(near, 1))
    return tuple(reversed(_thin(sorted(allowed), most)))


def _respects(size: int, mini_batch: int, least_batch: int) -> bool:
    rest = mini_batch % size
    return least_batch <= size <= mini_batch and (rest == 0 or rest >= least_batch)


def _thin(sizes: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of them: the ends stay, and the inner ones whose ratio to the size before is smallest go."""
    kept = list(sizes)
    while len(kept) > most:
        closest = min(range(1, len(kept) - 1), key=lambda place: kept[place + 1] / kept[place - 1])
        del kept[closest]
    return kept
