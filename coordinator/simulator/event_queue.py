"""Continuous time: what happens next, and when. Events of one moment happen in the order in which they were set."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class EventQueue:
    """Calls back at times, in order. now: seconds since the simulation began.

    between_moments: called after the last event of each moment, before time goes on; what it does may set more events.
    """

    __slots__ = ("_count", "_heap", "between_moments", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.between_moments: Callable[[], None] = _nothing
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def at(self, seconds: float, callback: Callable[[Any], None], argument: Any) -> None:
        """Calls callback(argument) at that time, which is not past."""
        self._count += 1
        heapq.heappush(self._heap, (seconds, self._count, callback, argument))

    def run(self, is_over: Callable[[], bool]) -> bool:
        """Lets time pass until `is_over`, which is asked at each moment; False where nothing more happens before that."""
        heap, pop = self._heap, heapq.heappop
        while not is_over():
            self.between_moments()
            if not heap:
                return False
            now, _, callback, argument = pop(heap)
            self.now = now
            callback(argument)
            while heap and heap[0][0] <= now:
                _, _, callback, argument = pop(heap)
                callback(argument)
        return True


def _nothing() -> None:
    """Where nobody wants to know."""
