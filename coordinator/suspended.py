"""Whether this machine slept: a laptop whose lid was closed, say, whose devices have freed themselves meanwhile.

CLOCK_BOOTTIME     ─────────────────────────────>  goes on while the machine sleeps
CLOCK_MONOTONIC    ──────────|      |───────────>  stands still, and so does everything that waits by it
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeswarm.errors import EdgeswarmError, ErrorCode

# Devices that hear nothing have freed themselves by then.
LONGEST_NAP_SECONDS = 10.0


def seconds_asleep_since_boot() -> float:
    """0 where a system has no such clocks."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SleepWatch:
    """asleep: seconds for which the machine has slept in all."""

    def __init__(self, asleep: Callable[[], float] = seconds_asleep_since_boot) -> None:
        self._asleep = asleep
        self._seen = asleep()

    def slept_seconds(self) -> float:
        """Since this was asked last."""
        before, self._seen = self._seen, self._asleep()
        return self._seen - before


def slept(seconds: float) -> EdgeswarmError:
    """What a training is told that had devices before."""
    long = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return EdgeswarmError(
        ErrorCode.DEVICE_LOST,
        f"This machine slept for {long}, and the devices have freed themselves meanwhile.",
        "Keep it awake while it trains (`systemd-inhibit edgeswarm train ...`), or start the training on one that stays on.",
    )
