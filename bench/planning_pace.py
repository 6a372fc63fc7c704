"""How quick the machine is about planning while it plans: a fixed small piece of work like it, again and again in between.

A machine that is shared is up to twice as slow from one second to the next, by the processor's own seconds, too.

    planning  |-------|##|-------|##|-------|##|---      ## the reference, of which planning's seconds are without
"""

from __future__ import annotations

import heapq
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

import numpy as np

from bench.testbed.speed import BEST

Found = TypeVar("Found")

# Between two looks, by the clock: a timer of the processor would make its own seconds coarse.
_EVERY_SECONDS = 0.02
_EVENTS = 1_500
_ARRAYS = 75


def timed(work: Callable[[], Found]) -> tuple[Found, float, tuple[float, ...]]:
    """What it finds, its processor seconds, and those of the reference before it and in between. In the main thread alone."""
    looks = [_reference_seconds()]

    def look(number: int, frame: FrameType | None) -> None:
        looks.append(_reference_seconds())

    before = signal.signal(signal.SIGALRM, look)
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, _EVERY_SECONDS, _EVERY_SECONDS)
    try:
        found = work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        seconds = time.process_time() - begun - sum(looks[1:])
        signal.signal(signal.SIGALRM, before)
    return found, seconds, tuple(looks)


def slowness(looks: Sequence[float], *, of_all: Sequence[float]) -> float:
    """Of the machine during some looks, by its best of all."""
    return statistics.mean(looks) / float(np.quantile(of_all, BEST))


def _reference_seconds() -> float:
    """Processor seconds of a few thousandths: events in their order, named by tuples, and operations on small arrays."""
    begun = time.process_time()
    events: list[tuple[int, int]] = []
    for number in range(_EVENTS):
        heapq.heappush(events, (number * 7919 % 6007, number))
    seen: dict[tuple[int, int], int] = {}
    while events:
        event = heapq.heappop(events)
        seen[event] = seen.get((event[0] - 1, event[1]), 0) + 1
    values = np.arange(64.0)
    for _ in range(_ARRAYS):
        values = np.maximum(values, np.cumsum(values[::-1]) / (1.0 + values.sum()))
    return time.process_time() - begun
