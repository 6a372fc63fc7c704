"""Why a measured curve ends before the batch size that was asked for, and whether it is worth measuring again. Pure.

A device stops where a batch wouldn't fit its memory, or would take too long. Time ends a curve at the same size again; memory
may have been short for a moment only. So each curve remembers what the device had then, and what ended for memory is measured
again where a device of its kind has clearly more: less than that is what free memory drifts by.
"""

from __future__ import annotations

from dataclasses import replace

from .profile_cache import Curve, Profiles

LONGEST_SECONDS = 1.0  # of one forward and backward; a curve ends there and is extrapolated
CLEARLY_MORE = 1.25  # times the memory


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
