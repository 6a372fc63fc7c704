"""From the repeats of one measurement to one figure that a hiccup of the scheduler doesn't move. Pure.

A processor with a quota computes at full speed for a moment and then stands still for one: short repeats are quick or slow by
wall clock. Their CPU seconds are steady; stretched by how long a CPU second takes on this device, they say what it will take.

    wall      |##|..........|##|..........|##|....      # computes   . stands still
    CPU       |##|##|##|    steady, x stretch = wall in the long run

Nor does a repeat count that takes new memory: each page has to be cleared, and a virtual machine may have to ask its host for
it (5 ms for 2 MiB were seen, where the layer takes 8 ms). In a training the same memory is used again and again.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STALLED_FRACTION = 0.2  # of the time, in which the processor did nothing for us
DISTURBED = 1.2  # times the other one of two
FEW_PAGE_FAULTS = 4
# So many repeats may take new memory, beside the first one; then it is taken for what this one always does.
MOST_UNSETTLED = 4


@dataclass
class Stretch:
    """Seconds by the clock that a CPU second takes here, over all that was measured so far.

    Above 1 where the processor has a quota, or others use it; below 1 where several threads compute.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, wall_seconds: float, cpu_seconds: float) -> None:
        self.wall_seconds += wall_seconds
        self.cpu_seconds += cpu_seconds

    @property
    def factor(self) -> float:
        return self.wall_seconds / self.cpu_seconds if self.cpu_seconds > 0 else 1.0

    @property
    def is_stalled(self) -> bool:
        """Whether wall clock times of short repeats mean nothing here."""
        return self.cpu_seconds < (1.0 - STALLED_FRACTION) * self.wall_seconds


@dataclass(frozen=True)
class Typical:
    """seconds: the figure. relative_error: about how far it may be off, as a part of it."""

    seconds: float
    relative_error: float


def typical(seconds: Sequence[float]) -> Typical:
    """The median, and from the spread around it how sure it is. Raises ValueError for no values.

    Of two values that differ much the smaller one: what disturbs a measurement that much makes it longer.
    """
    if not seconds:
        raise ValueError("no repeats")
    if len(seconds) <= 2:
        least, most = min(seconds), max(seconds)
        middle = least if most > DISTURBED * least else (least + most) / 2
        return Typical(middle, (most - least) / least if least > 0 else 0.0)
    middle = statistics.median(seconds)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in seconds)
    return Typical(middle, 1.2533 * spread / len(seconds) ** 0.5 / middle if middle > 0 else 0.0)


def settled(page_faults: Sequence[int], *, least: int) -> list[int]:
    """Which repeats show what it takes in the long run, in their order: those that took next to no new memory.

    page_faults: of each repeat. Where fewer than `least` did, the ones that took least.
    """
    kept = [place for place, count in enumerate(page_faults) if count <= FEW_PAGE_FAULTS]
    if len(kept) >= least:
        return kept
    by_faults = sorted(range(len(page_faults)), key=lambda place: page_faults[place])
    return sorted(by_faults[:least])


def wants_more(page_faults: Sequence[int], *, least: int) -> bool:
    """Whether another repeat may show more of the long run than those so far."""
    few = sum(count <= FEW_PAGE_FAULTS for count in page_faults)
    return few < least and len(page_faults) < least + MOST_UNSETTLED
