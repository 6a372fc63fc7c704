"""Which samples a round has, how they fall into micro-batches, and who takes which of them. Pure functions.

A mini-batch of 10 samples, micro-batches of 4, a stage with shares {a: 3, b: 1}, the next with {c: 2, d: 2}:

    mini-batch    0 1 2 3 | 4 5 6 7 | 8 9
    stage 0       a a a b | a a a b | a b
    stage 1       c c d d | c c d d | c d

Between the stages each overlap of two intervals is one frame: a->c [0,2), a->d [2,3), b->d [3,4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .job import Job


@dataclass(frozen=True)
class Interval:
    """Samples first <= i < end, numbered within their micro-batch."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first

    def overlap(self, other: Interval) -> Interval | None:
        """The samples in both, or None when there are none."""
        first, end = max(self.first, other.first), min(self.end, other.end)
        return Interval(first, end) if first < end else None


@dataclass(frozen=True)
class SampleOrder:
    """The order in which a job sees its samples: a function of (seed, epoch) alone.

    Every epoch is cut into mini-batches of `batch_size`; the last one of an epoch may be smaller, or is left out with
    `drop_last`: other samples in each epoch. Rounds count on over epochs. Raises ValueError where there is no round.
    """

    dataset_length: int
    batch_size: int
    seed: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.dataset_length < 1:
            raise ValueError("a data set needs at least one sample")
        if self.batch_size < 1:
            raise ValueError("batch_size is at least 1")
        if self.rounds_per_epoch < 1:
            raise ValueError("a data set that is smaller than batch_size has no round with drop_last")

    @classmethod
    def of(cls, job: Job, dataset_length: int) -> SampleOrder:
        """The order of a job's training set, which has so many samples."""
        return cls(dataset_length, job.batch_size, job.seed, job.drop_last)

    @property
    def rounds_per_epoch(self) -> int:
        return self.dataset_length // self.batch_size if self.drop_last else -(-self.dataset_length // self.batch_size)

    @property
    def rest(self) -> int:
        """Samples of an epoch's last mini-batch where that is a smaller one, else 0."""
        return 0 if self.drop_last else self.dataset_length % self.batch_size

    def epoch_of(self, round_number: int) -> int:
        return round_number // self.rounds_per_epoch

    def samples_of(self, round_number: int) -> int:
        """How many samples the mini-batch of this round has."""
        position = round_number % self.rounds_per_epoch
        return min(self.batch_size, self.dataset_length - position * self.batch_size)

    def permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        """Indices into the data set in the order of this epoch; shape [dataset_length].

        numpy's RandomState is frozen by its makers: the same numbers on every device and version.
        """
        generator = np.random.RandomState([self.seed & 0xFFFFFFFF, (self.seed >> 32) & 0xFFFFFFFF, epoch])
        return generator.permutation(self.dataset_length).astype(np.int64, copy=False)


def micro_batch_sizes(samples: int, *, micro_batch: int, least_batch: int = 1) -> tuple[int, ...]:
    """The sizes of a round's micro-batches: full ones, then the rest.

    A rest smaller than `least_batch` (a BatchNorm over one position can't take a single sample) borrows from the one before it.
    """
    if samples < 1 or micro_batch < 1:
        raise ValueError("samples and micro_batch are at least 1")
    full, rest = divmod(samples, micro_batch)
    sizes = [micro_batch] * full + ([rest] if rest else [])
    if len(sizes) > 1 and sizes[-1] < least_batch:
        lacking = min(least_batch - sizes[-1], sizes[-2] - 1)
        sizes[-2] -= lacking
        sizes[-1] += lacking
    return tuple(sizes)


def split_micro_batch(shares: Mapping[str, int], size: int, *, least_batch: int = 1) -> dict[str, Interval]:
    """The interval of a micro-batch of `size` samples that each replica of a stage takes, in the order of `shares`.

    A full micro-batch gives each its share. A smaller one is split in the same proportion (largest remainder, never above
    the share); a replica that would get less than `least_batch` gets nothing, and its samples go to those with room.
    """
    full = sum(shares.values())
    if size > full:
        raise ValueError(f"{size} samples are more than the shares hold ({full})")
    amounts = dict(shares) if size == full else _proportional(shares, size)
    for name in sorted(shares, key=lambda n: (amounts[n], n)):
        if size != full and 0 < amounts[name] < least_batch:
            _give_away(name, amounts, shares)
    intervals: dict[str, Interval] = {}
    first = 0
    for name in shares:
        intervals[name] = Interval(first, first + amounts[name])
        first += amounts[name]
    return intervals


def _proportional(shares: Mapping[str, int], size: int) -> dict[str, int]:
    full = sum(shares.values())
    amounts = {name: size * share // full for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda n: (-(size * shares[n] % full), n))
    for name in by_remainder[: size - sum(amounts.values())]:
        amounts[name] += 1
    return amounts


def _give_away(name: str, amounts: dict[str, int], shares: Mapping[str, int]) -> None:
    """Moves all of `name`'s samples to replicas that already have some and have room; leaves them where nobody has."""
    others = sorted((n for n in shares if n != name and amounts[n] > 0), key=lambda n: (amounts[n] - shares[n], n))
    room = sum(shares[n] - amounts[n] for n in others)
    if room < amounts[name]:
        return
    for other in others:
        moved = min(amounts[name], shares[other] - amounts[other])
        amounts[other] += moved
        amounts[name] -= moved


def split_in_passes(interval: Interval, *, at_once: int, least_batch: int = 1) -> tuple[Interval, ...]:
    """An interval in parts of nearly one size, of at most `at_once` samples, the larger ones first.

    In fewer and larger parts where one would have less than `least_batch`.
    """
    passes = max(1, min(-(-interval.size // at_once), interval.size // least_batch))
    size, over = divmod(interval.size, passes)
    ends = [interval.first + size * (index + 1) + min(index + 1, over) for index in range(passes)]
    return tuple(Interval(first, end) for first, end in zip([interval.first, *ends], ends, strict=False))


def overlaps(mine: Interval, theirs: Mapping[str, Interval]) -> list[tuple[str, Interval]]:
    """Who of another stage shares samples with `mine`, and which: one frame each, in the order of `theirs`."""
    return [(name, shared) for name, interval in theirs.items() if (shared := mine.overlap(interval)) is not None]
