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
                         64 128 256        what was measured now: 64 says by how much the device is slower or quicker than then

    Where it is far from what it was then, something was in the way of one of the two, and what was known stays as it is. Nothing
    new makes the newer one, which is empty.
    """
    if not after.batch_sizes:
        return after
    begin = after.batch_sizes[0]
    kept = [place for place, size in enumerate(before.batch_sizes) if size < begin]
    pace = 1.0
    if begin in before.batch_sizes:
        place = before.batch_sizes.index(begin)
        then = before.forward_seconds[place] + before.backward_seconds[place]
        now = after.forward_seconds[0] + after.backward_seconds[0]
        if then > 0 and 1 / FAR_APART < now / then < FAR_APART:
            pace = now / then

    def joined(old: Sequence[T], new: Sequence[T]) -> tuple[T, ...]:
        """Of errors and peaks, which may be unknown."""
        return (*(old[place] for place in kept), *new) if new and (old or not kept) else ()

    return replace(
        after,
        batch_sizes=(*(before.batch_sizes[place] for place in kept), *after.batch_sizes),
        forward_seconds=(*(pace * before.forward_seconds[place] for place in kept), *after.forward_seconds),
        backward_seconds=(*(pace * before.backward_seconds[place] for place in kept), *after.backward_seconds),
        relative_errors=joined(before.relative_errors, after.relative_errors),
        peak_bytes=joined(before.peak_bytes, after.peak_bytes),
        # At about 16 samples, which lie in what was known.
        rest_part=before.rest_part,
        weights_part=before.weights_part,
    )


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
