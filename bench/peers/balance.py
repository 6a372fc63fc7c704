"""What a competent user works out before running a peer: shares by speed, and a pipeline's stages balanced by speed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def shares_by_speed(mini_batch: int, speeds: Sequence[float]) -> list[int]:
    """Samples of each device in proportion to its speed, whole and at least 1. Raises ValueError for too few samples."""
    if mini_batch < len(speeds):
        raise ValueError(f"{mini_batch} samples for {len(speeds)} devices")
    exact = [mini_batch * speed / sum(speeds) for speed in speeds]
    shares = [max(1, int(share)) for share in exact]
    # The largest remainders get what is left; where the 1s took too much, the largest shares give it.
    for place in sorted(range(len(exact)), key=lambda place: int(exact[place]) - exact[place]):
        if sum(shares) < mini_batch:
            shares[place] += 1
    while sum(shares) > mini_batch:
        shares[shares.index(max(shares))] -= 1
    return shares


def corrected_speeds(shares: Sequence[int], cpu_seconds: Sequence[float], cores: Sequence[float]) -> list[float]:
    """Samples per second that each device would do if it never waited: by the CPU seconds that its share took it in a trial.

    cores: what each device may use of one core. One that idles for a part of the round does more than it was given.
    """
    return [share * core / max(used, 1e-9) for share, used, core in zip(shares, cpu_seconds, cores, strict=True)]


@dataclass(frozen=True)
class Cut:
    """A pipeline: stage s has blocks cuts[s] to cuts[s + 1] on devices[s]. slowest_seconds: of a stage, a micro-batch."""

    devices: tuple[int, ...]
    cuts: tuple[int, ...]
    slowest_seconds: float


def balanced_stages(
    block_seconds: Sequence[float],
    output_bytes: Sequence[int],
    *,
    slowness: Sequence[float],
    bytes_per_second: float,
    least_stages: int = 1,
    most_stages: int | None = None,
) -> Cut:
    """The cut whose slowest stage is fastest, over all orders and subsets of the devices, one stage on each.

    Raises ValueError where there are not enough devices or blocks for `least_stages`.

    block_seconds: of a micro-batch, forward and backward, on a device of slowness 1. output_bytes: of each block's output;
    it goes one way in the forward, and as much comes back in the backward. Schedule1F1B waits for what it sends, so that a
    stage's seconds and those of what it sends add up.
    """
    blocks = len(block_seconds)
    work = [0.0, *itertools.accumulate(block_seconds)]

    def stage_seconds(device: int, first: int, end: int) -> float:
        moved = (output_bytes[first - 1] if first else 0) + (output_bytes[end - 1] if end < blocks else 0)
        return (work[end] - work[first]) * slowness[device] + moved / bytes_per_second

    best: Cut | None = None
    possible = min(len(slowness), blocks)
    if possible < least_stages:
        raise ValueError(f"{least_stages} stages of {blocks} blocks on {len(slowness)} devices")
    seen: set[tuple[float, ...]] = set()
    for count in range(least_stages, min(possible, most_stages or possible) + 1):
        for order in itertools.permutations(range(len(slowness)), count):
            kinds = tuple(slowness[device] for device in order)
            if kinds in seen:  # equal devices may change places
                continue
            seen.add(kinds)
            found = _cut(order, blocks, stage_seconds)
            if best is None or found.slowest_seconds < best.slowest_seconds:
                best = found
    assert best is not None
    return best


def _cut(order: tuple[int, ...], blocks: int, stage_seconds: Callable[[int, int, int], float]) -> Cut:
    reached: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for place, device in enumerate(order):
        left = len(order) - place - 1
        ends = [blocks] if left == 0 else range(place + 1, blocks - left + 1)
        reached = {
            end: min(
                (max(slowest, stage_seconds(device, first, end)), (*cuts, end))
                for first, (slowest, cuts) in reached.items()
                if first < end
            )
            for end in ends
        }
    slowest, cuts = reached[blocks]
    return Cut(order, cuts, slowest)
