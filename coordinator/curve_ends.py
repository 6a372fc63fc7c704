"""Why a measured curve ends before the batch size that was asked for, and whether it is worth measuring again. Pure.

A device stops where a batch wouldn't fit its memory, or would take too long. Time ends a curve at the same size again; memory
may have been short for a moment only. So each curve remembers what the device had then, and what ended for memory is measured
again where a device of its kind has clearly more: less than that is what free memory drifts by. A job with a larger batch goes on
where a curve ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from .profile_cache import Curve, Profiles

LONGEST_SECONDS = 1.0  # of one forward and backward; a curve ends there and is extrapolated
CLEARLY_MORE = 1.25  # times the memory
FAR_APART = 1.5  # times as long

T = TypeVar("T")


def ended_for_memory(curve: Curve, *, wanted: int) -> bool:
    """Whether memory kept a curve from `wanted` samples.

    A device takes what lies beyond two sizes for at most proportional to the last, and what lies beyond one for as long: where
    that is too long for it, time ended the curve.
    """
    if not curve.batch_sizes:
        return True
    if curve.batch_sizes[-1] >= wanted:
        return False
    seconds = curve.forward_seconds[-1] + curve.backward_seconds[-1]
    return (2 * seconds if len(curve.batch_sizes) > 1 else seconds) <= LONGEST_SECONDS


def is_outgrown(curve: Curve, *, memory_bytes: int, wanted: int) -> bool:
    """Whether a device that now has so much memory would measure clearly further. wanted: in samples, and no further."""
    return memory_bytes > CLEARLY_MORE * curve.memory_bytes and ended_for_memory(curve, wanted=wanted)


def continued(before: Curve, after: Curve) -> Curve:
    """A curve and what was measured later from its end on, as one.

    samples   1   4  16  64                what was known
              1          64 128 256        what was measured now: 64 says by how much the device is slower or quicker than then

    Where it is far from what it was then, something was in the way of one of the two, and what was known stays as it is. So does
    all of it where nothing further was measured.
    """
    if not after.batch_sizes or after.batch_sizes[-1] < before.batch_sizes[-1]:
        return replace(before, asked=max(before.asked, after.asked), memory_bytes=after.memory_bytes)
    old, new = _points(before), _points(after)
    pace = 1.0
    for size in sorted(old.keys() & new.keys()):  # the largest counts
        then, now = sum(old[size]), sum(new[size])
        pace = now / then if then > 0 and 1 / FAR_APART < now / then < FAR_APART else 1.0
    points = {size: (pace * forward, pace * backward) for size, (forward, backward) in old.items()} | new
    sizes = tuple(sorted(points))

    def joined(of_before: Sequence[T], of_after: Sequence[T]) -> tuple[T, ...]:
        """Of errors and peaks, which may be unknown."""
        if not (of_before and of_after):
            return ()
        by_size = dict(zip(before.batch_sizes, of_before, strict=True))
        by_size |= dict(zip(after.batch_sizes, of_after, strict=True))
        return tuple(by_size[size] for size in sizes)

    # Parts of backwards are of about 16 samples, which lie in what was known.
    parts = before if before.weights_part else after
    return replace(
        after,
        batch_sizes=sizes,
        forward_seconds=tuple(points[size][0] for size in sizes),
        backward_seconds=tuple(points[size][1] for size in sizes),
        relative_errors=joined(before.relative_errors, after.relative_errors),
        peak_bytes=joined(before.peak_bytes, after.peak_bytes),
        rest_part=parts.rest_part,
        weights_part=parts.weights_part,
    )


def _points(curve: Curve) -> dict[int, tuple[float, float]]:
    """Seconds of a forward and a backward, by samples."""
    seconds = zip(curve.forward_seconds, curve.backward_seconds, strict=True)
    return dict(zip(curve.batch_sizes, seconds, strict=True))


def without_losses(measured: Profiles, *, known: Profiles) -> Profiles:
    """What was measured; where a known curve reaches further all the same, that one, as if measured with as much memory."""
    curves = dict(measured.curves)
    for key, curve in measured.curves.items():
        before = known.curves.get(key)
        if before is not None and _largest(before) > _largest(curve):
            curves[key] = replace(before, asked=max(before.asked, curve.asked), memory_bytes=curve.memory_bytes)
    return replace(measured, curves=curves)


def _largest(curve: Curve) -> int:
    return curve.batch_sizes[-1] if curve.batch_sizes else 0
