"""Asteroid's Algorithm 1: how a group of devices shares the samples of one micro-batch, for many stages at once.

Two phases. Sharing: in proportion to the devices' capacity (Eq 9), each clipped at what its memory holds, the remainder
shared again over the devices with room. Off-loading: a block of samples goes from the straggler to the device that then
takes least time, as long as the straggler's time falls; the block is halved until it is one sample.

Everything is vectorised over R stages, that is runs of layers: arrays are [R] or [R, G] for a group of G devices.
A share is a whole number, 0 or at least the stage's least batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.profile import DeviceProfile

BoolArray = npt.NDArray[np.bool_]

# Among which every choice is tried where the least batch forbids some: a thousand choices.
FEW_DEVICES = 10


@dataclass(frozen=True)
class StageTimes:
    """Seconds of any run of layers at any batch size up to B, for each class of device.

    forward, backward: [classes, B + 1, layer_count + 1], the seconds of the layers before each cut.
    """

    forward: FloatArray
    backward: FloatArray

    @classmethod
    def of(cls, profiles: list[DeviceProfile], micro_batch: int) -> StageTimes:
        """Tables of the given profiles, in their order, at batch sizes 0 to micro_batch."""
        tables = [profile.seconds_table(micro_batch) for profile in profiles]
        return cls(
            forward=np.array([forward for forward, _ in tables]),
            backward=np.array([backward for _, backward in tables]),
        )


@dataclass(frozen=True)
class Group:
    """The stages to share samples in, and the devices of the group.

    seconds: [classes, B + 1, layer_count + 1], forward and backward together (see StageTimes).
    kinds: [G] class of each device. first, end: [R] layers [first, end) of each stage.
    largest: [R, G] samples that the memory holds. least: [R] least batch.
    """

    seconds: FloatArray
    kinds: IntArray
    first: IntArray
    end: IntArray
    largest: IntArray
    least: IntArray

    @property
    def micro_batch(self) -> int:
        return int(self.seconds.shape[1]) - 1

    def take(self, rows: IntArray) -> Group:
        """The same group for some of the stages."""
        return Group(self.seconds, self.kinds, self.first[rows], self.end[rows], self.largest[rows], self.least[rows])

    def times(self, shares: IntArray) -> FloatArray:
        """[R, G]: seconds of each device forward and backward with these shares."""
        kinds = self.kinds[np.newaxis, :]
        end, first = self.end[:, np.newaxis], self.first[:, np.newaxis]
        result: FloatArray = self.seconds[kinds, shares, end] - self.seconds[kinds, shares, first]
        return result

    def times_at(self, devices: IntArray, shares: IntArray) -> FloatArray:
        """[R]: seconds of one device of each stage."""
        kinds = self.kinds[devices]
        result: FloatArray = self.seconds[kinds, shares, self.end] - self.seconds[kinds, shares, self.first]
        return result


def share_samples(group: Group) -> IntArray:
    """Algorithm 1 for every stage of a group: shares [R, G].

    A row of zeros where the group cannot hold the micro-batch: too little memory, or no way to respect the least batch.
    """
    micro_batch = group.micro_batch
    largest = np.clip(group.largest, 0, micro_batch)
    largest = np.where(largest < group.least[:, np.newaxis], 0, largest)
    shares = np.zeros_like(largest)
    rows = np.flatnonzero(largest.sum(axis=1) >= micro_batch)
    if not len(rows):
        return shares
    able = Group(group.seconds, group.kinds, group.first[rows], group.end[rows], largest[rows], group.least[rows])
    capacity = _capacity(able)
    found = _share_in_proportion(capacity, able.largest, np.full(len(rows), micro_batch))
    found = _respect_least(found, capacity, able)
    valid = np.flatnonzero(found.sum(axis=1) == micro_batch)
    found[valid] = _offload(found[valid], able.take(valid))
    shares[rows[valid]] = found[valid]
    return shares


def _capacity(group: Group) -> FloatArray:
    """[R, G] v_d (Eq 9): one over the seconds of a whole micro-batch; equal where a stage costs nothing."""
    whole = np.full(group.largest.shape, group.micro_batch)
    result: FloatArray = 1.0 / np.maximum(group.times(whole), 1e-12)
    return result


def _share_in_proportion(capacity: FloatArray, largest: IntArray, samples: IntArray) -> IntArray:
    """Phase 1: in proportion to capacity, clipped at `largest`, the remainder shared again over devices with room.

    samples: [R] to share; every row of `largest` holds at least as many. Rounded down, then one more to the largest fractions.
    """
    rows, size = largest.shape
    exact = np.zeros((rows, size))
    remainder = samples.astype(np.float64)
    for _ in range(size):
        weight = np.where(exact < largest, capacity, 0.0)
        total = weight.sum(axis=1, keepdims=True)
        part = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
        grown = np.minimum(exact + remainder[:, np.newaxis] * part, largest)
        remainder = remainder - (grown - exact).sum(axis=1)
        exact = grown
        if np.all(remainder < 1e-9):
            break
    shares = np.minimum(np.floor(exact + 1e-9).astype(np.int64), largest)
    fraction = exact - shares
    every = np.arange(rows)
    while True:
        missing = samples - shares.sum(axis=1)
        if not np.any(missing > 0):
            return shares
        best = np.argmax(np.where(shares < largest, fraction, -np.inf), axis=1)
        shares[every, best] += missing > 0
        fraction[every, best] -= 1.0


def _respect_least(shares: IntArray, capacity: FloatArray, group: Group) -> IntArray:
    """Mend rows with a share between 0 and the least batch: choose devices, give each the least, share the rest.

    As many devices as the least batch and memory allow, since off-loading can empty one but not fill one: of all choices
    among few devices, else the fastest that hold the least batch. Rows that cannot be mended are zeros.
    """
    least = group.least[:, np.newaxis]
    open_rows = np.flatnonzero(((shares > 0) & (shares < least)).any(axis=1))
    shares[open_rows] = 0
    for chosen in _choices(capacity, group):
        if not len(open_rows):
            break
        mask = chosen[open_rows]
        base = least[open_rows] * mask
        spare = np.where(mask, group.largest[open_rows] - base, 0)
        rest = group.micro_batch - base.sum(axis=1)
        fits = (spare >= 0).all(axis=1) & (rest >= 0) & (rest <= spare.sum(axis=1))
        rows = open_rows[fits]
        shares[rows] = base[fits] + _share_in_proportion(capacity[rows], spare[fits], rest[fits])
        open_rows = open_rows[~fits]
    return shares


def _choices(capacity: FloatArray, group: Group) -> Iterator[BoolArray]:
    """[rows, devices] each: which devices take part, more of them first."""
    rows, size = capacity.shape
    if size <= FEW_DEVICES:
        for count in range(size, 0, -1):
            for chosen in itertools.combinations(range(size), count):
                yield np.broadcast_to(np.isin(np.arange(size), chosen), (rows, size))
        return
    holds_it = group.largest >= group.least[:, np.newaxis]
    order = np.argsort(np.where(holds_it, -capacity, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    for count in range(size, 0, -1):
        yield rank < count


def _offload(shares: IntArray, group: Group) -> IntArray:
    """Phase 2: blocks of samples from the straggler to the fastest device with room, while the slowest time falls."""
    if shares.shape[1] == 1 or not len(shares):
        return shares
    shares = shares.copy()
    block = max(1, group.micro_batch // 8)
    while True:
        rows = np.arange(len(shares))
        part = group
        while len(rows):
            moved = _offload_once(shares, rows, part, block)
            rows = rows[moved]
            part = part.take(np.flatnonzero(moved))
        if block == 1:
            return shares
        block //= 2


def _offload_once(shares: IntArray, rows: IntArray, group: Group, block: int) -> BoolArray:
    """Move one block in each of the given rows of `shares`, in place; which rows moved. `group` is of these rows."""
    now = shares[rows]
    every = np.arange(len(rows))
    times = group.times(now)
    straggler = np.argmax(times, axis=1)
    slowest = times[every, straggler]
    held = now[every, straggler]
    move = np.minimum(block, held)
    move = np.where(held - move < group.least, held, move)
    after = now + move[:, np.newaxis]
    room = (after <= group.largest) & (after >= group.least[:, np.newaxis])
    room[every, straggler] = False
    target_times = np.where(room, group.times(np.where(room, after, 0)), np.inf)
    target = np.argmin(target_times, axis=1)
    falls: BoolArray = (target_times[every, target] < slowest) & (group.times_at(straggler, held - move) < slowest)
    chosen = np.flatnonzero(falls)
    shares[rows[chosen], straggler[chosen]] -= move[chosen]
    shares[rows[chosen], target[chosen]] += move[chosen]
    return falls
