"""Progress of a training on standard error: one live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ..events import (
    DevicesFound,
    EvaluationDone,
    Event,
    ModelReady,
    PlanMade,
    ProfileProgress,
    RoundDone,
    StepDone,
    StepStarted,
    TrainingDone,
    Warning,
)
from ..planner.units import readable_bytes, readable_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

PLAIN_LINE_EVERY_SECONDS = 5.0
_SPINNER_WIDTH = 3


def round_line(event: RoundDone) -> str:
    """`round 12/184 | loss 1.2034 | 845 samples/s | 0:41 left | use 83 64 91 %`: short enough for 80 columns."""
    parts = [
        f"round {event.round + 1}/{event.rounds}",
        f"loss {event.loss:.4f}",
        f"{event.samples_per_second:.0f} samples/s",
    ]
    if event.seconds_left is not None:
        parts.append(f"{_clock(event.seconds_left)} left")
    parts.append(f"use {' '.join(f'{100 * use:.0f}' for use in event.stage_use)} %")
    return " | ".join(parts)


def evaluation_line(event: EvaluationDone) -> str:
    """`evaluation after epoch 3 | loss 0.2034 | accuracy 0.9712 | best so far`"""
    parts = [f"evaluation after epoch {event.epoch + 1}"]
    parts += [f"{name} {value:.4f}" for name, value in event.metrics.items()]
    return " | ".join([*parts, "best so far"] if event.best else parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """A listener of events that shows them; use it as a context manager around the work.

    show_plan: prints the plan when it is made. clock: seconds that only grow.
    """

    def __init__(
        self,
        console: Console,
        *,
        show_plan: Callable[[PlanMade], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._show_plan = show_plan
        self._clock = clock
        self._status: Status | None = None
        self._last_plain_line = float("-inf")
        self._running: list[str] = []

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, StepStarted):
            self._running.append(event.step)
            self._live(", ".join(self._running))
        elif isinstance(event, StepDone):
            if event.step in self._running:  # the steps overlap: the line names those that still run
                self._running.remove(event.step)
                self._live(", ".join(self._running))
            self._line(f"  {event.step:<20} {readable_seconds(event.seconds):>10}  {event.detail}".rstrip())
        elif isinstance(event, Warning):
            self._line(f"warning: {event.message}")
        elif isinstance(event, DevicesFound):
            names = ", ".join(device.node_id for device in event.devices)
            count = len(event.devices)
            self._line(f"  {count} device{'' if count == 1 else 's'} ({_FOUND_BY[event.how]}): {names}")
        elif isinstance(event, ModelReady):
            size = readable_bytes(event.parameter_bytes)
            self._line(f"  model: {len(event.layer_names)} layers, {size} of parameters, {event.dtype}")
        elif isinstance(event, ProfileProgress):
            self._now_and_then(f"measuring {event.done}/{event.total} {event.detail}".rstrip())
        elif isinstance(event, PlanMade):
            if self._show_plan is not None:
                self._show_plan(event)
        elif isinstance(event, RoundDone):
            self._now_and_then(round_line(event), last=event.round + 1 == event.rounds)
        elif isinstance(event, EvaluationDone):
            self._line(f"  {evaluation_line(event)}")
        elif isinstance(event, TrainingDone):
            self._training_done(event)

    def _training_done(self, event: TrainingDone) -> None:
        self._line(
            f"  {event.rounds} rounds in {readable_seconds(event.rounds_seconds)}, last loss {event.loss:.4f}; "
            f"{readable_seconds(event.seconds)} in all"
        )

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _live(self, text: str) -> None:
        if self._status is not None:
            # The spinner would wrap a long text, and a live line of two lines flickers.
            self._status.update(text[: self._console.width - _SPINNER_WIDTH])

    def _now_and_then(self, text: str, *, last: bool = False) -> None:
        """On a terminal the live line; elsewhere a line of its own, when the one before is old enough."""
        self._live(text)
        now = self._clock()
        if self._status is None and (last or now - self._last_plain_line >= PLAIN_LINE_EVERY_SECONDS):
            self._last_plain_line = now
            self._line(f"  {text}")


_FOUND_BY = {"mdns": "found by mDNS", "addresses": "by address", "remembered": "at their last known addresses"}
