"""Where a worker's compute thread spends a round."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

FORWARD = "forward"
BACKWARD = "backward"
SEND = "send"
ALL_REDUCE = "all-reduce"
STEP = "step"
OTHER = "other"
WAITING = "waiting for "
# Of the thread that makes samples ready.
READING = "reading"
TRANSFORM = "transform"
# What the model itself is; its seconds of the processor are counted, too.
MODEL_PARTS = frozenset({FORWARD, BACKWARD, STEP})


class RoundClock:
    """A stopwatch that is always in exactly one part, so that the parts add up to the round.

    Parts are the names above; waiting is "waiting for " and for what. Only the compute thread switches parts.
    model_cpu_seconds: of that thread in MODEL_PARTS, since the round began.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._started = self._since = time.perf_counter()
        self._part = OTHER
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_since = 0.0
        self.model_cpu_seconds = 0.0

    def begin_round(self) -> None:
        self._begin()

    def switch(self, part: str) -> str:
        """From now on time counts for `part`; returns the part before."""
        now = time.perf_counter()
        before = self._part
        self._seconds[before] += now - self._since
        self._part, self._since = part, now
        if (before in MODEL_PARTS) != (part in MODEL_PARTS):
            processor = time.thread_time()
            if before in MODEL_PARTS:
                self.model_cpu_seconds += processor - self._cpu_since
            self._cpu_since = processor
        return before

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def end_round(self) -> tuple[float, dict[str, float]]:
        """Seconds of the round, and of each of its parts."""
        self.switch(OTHER)
        return self._since - self._started, dict(self._seconds)


class Doing(NamedTuple):
    """What a worker is at. waiting_for: node ids. number: which of its actions it is. since: seconds of time.monotonic().

    kind: of computing, which takes its time whatever others do; empty for anything else. longest_seconds: of earlier ones of the
    kind, 0 without any.
    """

    action: str
    waiting_for: tuple[str, ...]
    number: int
    since: float
    kind: str
    longest_seconds: float


class Progress:
    """What a thread of the worker does now, for the heartbeat: written by this thread, read by the one that reports.

    longest_seconds: of a kind at least, whatever its actions have taken so far. waits_for_turn: whether it stands still for the
    thread that it takes turns with (edgeswarm/model/draws.py); asked from any thread.
    """

    def __init__(self, *, longest_seconds: float = 0.0, waits_for_turn: Callable[[], bool] = lambda: False) -> None:
        self._lock = threading.Lock()
        self._doing = Doing("idle", (), 0, time.monotonic(), "", 0.0)
        self._beside: Progress | None = None
        self._turns_with: Progress | None = None
        self._waits_for_turn = waits_for_turn
        self._least = longest_seconds
        self._longest: dict[str, float] = {}
        self.epoch = 0
        self.round = 0

    def begin_epoch(self, epoch: int) -> None:
        """With another stage maybe: what actions have taken so far says nothing of its."""
        with self._lock:
            self.epoch = epoch
            self._longest.clear()

    def set(
        self,
        action: str,
        waiting_for: tuple[str, ...] = (),
        *,
        kind: str = "",
        beside: Progress | None = None,
        turns_with: Progress | None = None,
    ) -> None:
        """kind: as Doing has it. beside: of the thread that this one waits for. turns_with: of one that it takes turns with."""
        with self._lock:
            before, now = self._doing, time.monotonic()
            if before.kind:
                self._longest[before.kind] = max(self._longest.get(before.kind, 0.0), now - before.since)
            longest = max(self._least, self._longest.get(kind, 0.0)) if kind else 0.0
            self._doing = Doing(action, waiting_for, before.number + 1, now, kind, longest)
            self._beside = beside
            self._turns_with = turns_with

    @contextlib.contextmanager
    def during(self, action: str, *, kind: str) -> Iterator[None]:
        self.set(action, kind=kind)
        try:
            yield
        finally:
            self.set("idle")

    def read(self) -> Doing:
        """Where it waits for a thread that computes, or for its turn, what that one is at."""
        with self._lock:
            doing, beside = self._doing, self._beside
            if self._turns_with is not None and self._waits_for_turn():
                beside = self._turns_with
        other = beside.read() if beside is not None else doing
        return other if other.kind else doing
