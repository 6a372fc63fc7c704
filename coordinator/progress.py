"""Telling the listener what happens, from whichever thread it happens in, and keeping how long each step took."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .events import Event, Listener, StepDone, StepStarted, Warning


@dataclass(frozen=True)
class StepTime:
    """from_seconds: when the step began, counted from the beginning of the command."""

    step: str
    detail: str
    from_seconds: float
    seconds: float


class Progress:
    """One command's report. The listener is called by one thread at a time."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._steps: list[StepTime] = []

    @property
    def steps(self) -> tuple[StepTime, ...]:
        """The steps that are done, in the order in which they ended."""
        return tuple(self._steps)

    def seconds(self) -> float:
        """Since the command began."""
        return time.monotonic() - self._began

    def tell(self, event: Event) -> None:
        with self._lock:
            self._listener(event)

    def warn(self, message: str) -> None:
        self.tell(Warning(message))

    @contextlib.contextmanager
    def step(self, step: str, detail: str = "") -> Iterator[None]:
        """Around one step. A step that raises is not done."""
        began = self.seconds()
        self.tell(StepStarted(step, detail))
        yield
        seconds = self.seconds() - began
        self._steps.append(StepTime(step, detail, began, seconds))
        self.tell(StepDone(step, seconds, detail))
