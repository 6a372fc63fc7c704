"""How quick the processor is at this very moment, by a short piece of work that is always the same.

    reference  | layer, layer | reference | layer, layer | reference      a point of a curve
       1.0     |  10.1  10.0  |    1.3    |  13.2  13.1  |    1.3         ms as measured
                   10 x the reference throughout

A processor's speed changes under a profile: its clock with its heat, its caches and memory with what else runs, a shared core
with its neighbours, by a third from one minute to the next on a virtual machine. Layers that were timed in the slow minute would
look dear beside the others, and a planner, which looks for what is cheap, gives them away. So a layer's time is taken as a
multiple of the reference work's about it; what the multiple is worth in seconds, the reference work of the whole profile tells.

Layers multiply matrices in the caches, and walk over numbers in memory; either suffers in its own way when the machine is busy.
So the reference does both. How much of each counts was seen of six layers of three models, 100 times each on a busy machine:
their seconds went with the products to the power of 0.4 to 0.8, and with the walks to 0.06 to 0.5, least in products of large
matrices, which scattered more beside a mean of both than by themselves. `bench.reference_work` measures how much less a layer
scatters beside it.
(Walks over numbers that fit a cache became several times as slow while layers took half as long again: no measure for them.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

# Of the shortest look; the median counts, since a single one may be interrupted. After long work it is longer: by a part of that.
LEAST_REPEATS, MOST_REPEATS = 3, 30
PART_OF_WORK = 0.05
_FIRST_WORK_SECONDS = 1.0
_SECONDS_OF_A_REPEAT = 0.0003  # about, of the processor
_MATRIX_SIDE, _PRODUCTS = 128, 4
# As powers. A look is noisy itself, so that they are less than 1 together.
PRODUCTS_COUNT, WALKS_COUNT = 0.7, 0.15
_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Pace:
    """How long the reference work takes, by the clock and of the processor: the more, the slower it is. Ratios mean something."""

    wall_seconds: float
    cpu_seconds: float

    @classmethod
    def of(cls, *, products: Sequence[tuple[float, float]], walks: Sequence[tuple[float, float]]) -> Pace:
        """Of the repeats' seconds, by the clock and of the processor; at least one each."""
        wall, cpu = (
            statistics.median(each[clock] for each in products) ** PRODUCTS_COUNT
            * statistics.median(each[clock] for each in walks) ** WALKS_COUNT
            for clock in (0, 1)
        )
        return cls(wall, cpu)

    @staticmethod
    def between(one: Pace, other: Pace) -> Pace:
        """Half way."""
        return Pace(
            (one.wall_seconds + other.wall_seconds) / 2,
            (one.cpu_seconds + other.cpu_seconds) / 2,
        )

    def slower_than(self, other: Pace) -> Pace:
        """How many times as long this one takes, by either clock."""
        return Pace(self.wall_seconds / other.wall_seconds, self.cpu_seconds / other.cpu_seconds)


STEADY = Pace(1.0, 1.0)


@dataclass
class Paces:
    """The paces of a profile. look: of what was computed since the last one, in seconds of the processor, makes the pace now.

    base: the one in whose seconds its curves are told while it goes on.
    """

    look: Callable[[float], Pace]
    base: Pace = field(init=False)
    _weighted: list[tuple[float, Pace]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.base = self.look(_FIRST_WORK_SECONDS)

    def add(self, pace: Pace, *, cpu_seconds: float) -> None:
        """So much was computed at that pace."""
        self._weighted.append((cpu_seconds, pace))

    def usual(self) -> Pace:
        """How many times as slow as `base` it was over all that was computed; STEADY where nothing was.

        So that all of it together, brought to the base pace and from there to this one, takes what it took.
        """
        total = sum(weight for weight, _ in self._weighted)
        if total <= 0:
            return STEADY
        wall = sum(weight / pace.wall_seconds for weight, pace in self._weighted)
        cpu = sum(weight / pace.cpu_seconds for weight, pace in self._weighted)
        return Pace(total / wall, total / cpu).slower_than(self.base)


def steady(_: float = 0.0) -> Pace:
    """Of an accelerator, whose speed is its own."""
    return STEADY


class ReferenceWork:
    """Half a millisecond of work for a processor, which a look repeats."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._matrix = torch.rand(_MATRIX_SIDE, _MATRIX_SIDE, generator=generator)
        self._product = torch.empty_like(self._matrix)
        self._numbers = torch.zeros(_NUMBERS)
        self.look(0.0)

    @property
    def held_bytes(self) -> int:
        """Of memory."""
        held = (self._matrix, self._product, self._numbers)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def look(self, computed_seconds: float) -> Pace:
        """The pace now. computed_seconds: of the processor, since the last look."""
        count = min(max(int(PART_OF_WORK * computed_seconds / _SECONDS_OF_A_REPEAT), LEAST_REPEATS), MOST_REPEATS)
        repeats = [(_timed(self._multiply), _timed(self._walk)) for _ in range(count)]
        return Pace.of(products=[both[0] for both in repeats], walks=[both[1] for both in repeats])

    def _multiply(self) -> None:
        for _ in range(_PRODUCTS):
            torch.mm(self._matrix, self._matrix, out=self._product)

    def _walk(self) -> None:
        self._numbers.add_(1.0)


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    started, computed = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - computed
