"""Progress of a training: one live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..events import (
    MEASURE_LINKS,
    PREPARE_WORKERS,
    PROFILE_LAYERS,
    SEND_BUNDLE,
    TRAIN,
    BestKept,
    CheckpointWritten,
    DevicesFound,
    EvaluationDone,
    Event,
    ModelReady,
    PlanMade,
    ProfileProgress,
    RoundDone,
    SharesMoved,
    StepDone,
    StepStarted,
    TrainingDone,
    TransferProgress,
    Warning,
    WorkerDoes,
)
from ..planner.units import readable_bytes, readable_seconds
from .console import draws_live
from .live_line import LiveText, RunningSteps, clock_time, readable_rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

PLAIN_LINE_EVERY_SECONDS = 5.0


def round_line(event: RoundDone) -> str:
    """`round 12/184 | loss 1.2034 | 845 samples/s | 0:41 left | stages 83 64 91 % busy`: short enough for 80 columns."""
    parts = [
        f"round {event.round + 1}/{event.rounds}",
        f"loss {event.loss:.4f}",
        f"{readable_rate(event.samples_per_second)} samples/s",
    ]
    if event.seconds_left is not None:
        parts.append(f"{clock_time(event.seconds_left)} left")
    parts.append(f"stages {' '.join(f'{100 * use:.0f}' for use in event.stage_use)} % busy")
    return " | ".join(parts)


def shares_line(event: SharesMoved) -> str:
    """`after round 6 shares follow speed: nx-1 217 -> 231, tx2-1 96 -> 89; about 5 % faster`"""
    changes = [
        f"{device} {before} -> {stage.shares[device]}"
        for old, stage in zip(event.before.stages, event.plan.stages, strict=True)
        for device, before in old.shares.items()
        if stage.shares[device] != before
    ]
    return f"after round {event.round} shares follow speed: {', '.join(changes)}; about {100 * event.gain:.0f} % faster"


def evaluation_line(event: EvaluationDone) -> str:
    """`evaluation after epoch 3 | loss 0.2034 | accuracy 0.9712 | best so far`"""
    parts = [f"evaluation after epoch {event.epoch + 1}"]
    parts += [f"{name} {value:.4f}" for name, value in event.metrics.items()]
    return " | ".join([*parts, "best so far"] if event.best else parts)


def epochs_line(metrics: Mapping[str, Any]) -> str | None:
    """How fast the first epoch was, and how fast the later ones, for which the devices have the samples already.

    metrics: the document of metrics.json. None where there was one epoch.
    """
    totals = metrics.get("totals", {})
    first, later = totals.get("first_epoch"), totals.get("later_epochs")
    if not first or not later or not first["samples"] or not later["samples"]:
        return None
    return (
        f"first epoch {readable_rate(first['samples_per_second'])} samples/s, "
        f"later ones {readable_rate(later['samples_per_second'])} samples/s"
    )


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
        self._running = RunningSteps(clock)
        self._round = ""  # the newest one's line; as long as there is one, it is what the live line shows

    def __enter__(self) -> Progress:
        if draws_live(self._console):
            self._status = self._console.status(LiveText(self._live_text))
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
            self._running.begin(event.step)
            if event.step == TRAIN:
                self._last_plain_line = float("-inf")  # the first round is worth a line, whatever came before it
        elif isinstance(event, StepDone):
            self._running.end(event.step)
            self._round = ""
            self.line(f"  {event.step:<20} {readable_seconds(event.seconds):>10}  {event.detail}".rstrip())
        elif isinstance(event, Warning):
            self.line(f"warning: {event.message}")
        elif isinstance(event, DevicesFound):
            names = ", ".join(device.node_id for device in event.devices)
            count = len(event.devices)
            self.line(f"  {count} device{'' if count == 1 else 's'} ({_FOUND_BY[event.how]}): {names}")
        elif isinstance(event, ModelReady):
            size = readable_bytes(event.parameter_bytes)
            self.line(f"  model: {len(event.layer_names)} layers, {size} of parameters, {event.dtype}")
        elif isinstance(event, ProfileProgress):
            self._measured(event)
        elif isinstance(event, TransferProgress):
            self._running.count_bytes(SEND_BUNDLE, event.device, event.done_bytes, event.total_bytes)
            self._now_and_then(self._running.text())
        elif isinstance(event, WorkerDoes):
            self._running.note(PREPARE_WORKERS, event.device, event.action)
        elif isinstance(event, PlanMade):
            if self._show_plan is not None:
                self._show_plan(event)
        elif isinstance(event, SharesMoved):
            self.line(f"  {shares_line(event)}")
        elif isinstance(event, RoundDone):
            self._round = round_line(event)
            self._now_and_then(self._round, last=event.round + 1 == event.rounds)
        elif isinstance(event, EvaluationDone):
            self.line(f"  {evaluation_line(event)}")
        elif isinstance(event, BestKept):
            size, seconds = readable_bytes(event.bytes), readable_seconds(event.seconds)
            self.line(f"  layers of the best so far kept: {size} in {seconds}")
        elif isinstance(event, CheckpointWritten):
            size, seconds = readable_bytes(event.bytes), readable_seconds(event.seconds)
            self.line(f"  checkpoint after round {event.round}: {size} in {seconds}")
        elif isinstance(event, TrainingDone):
            self._training_done(event)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, soft_wrap=True)

    def _measured(self, event: ProfileProgress) -> None:
        """Layers or links, whichever is being measured; never both."""
        left = None
        for step in (PROFILE_LAYERS, MEASURE_LINKS):
            left = self._running.count(step, event.done, event.total) or left
        text = f"measuring {event.done}/{event.total} {event.detail}".rstrip()
        self._now_and_then(text if left is None else f"{text}, {clock_time(left)} left")

    def _training_done(self, event: TrainingDone) -> None:
        self.line(
            f"  {event.rounds} rounds in {readable_seconds(event.rounds_seconds)}, last loss {event.loss:.4f}; "
            f"this command took {readable_seconds(event.seconds)}"
        )
        if event.stopped_early:
            self.line("  stopped early: the evaluations got no better")
        if event.best is not None:
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in event.best.metrics.items())
            self.line(f"  best evaluation: epoch {event.best.epoch + 1}, {metrics}")

    def _live_text(self) -> str:
        return self._round or self._running.text() or "working"  # between two steps

    def _now_and_then(self, text: str, *, last: bool = False) -> None:
        """Where nothing is alive, a line of its own, when the one before is old enough."""
        now = self._clock()
        if self._status is None and (last or now - self._last_plain_line >= PLAIN_LINE_EVERY_SECONDS):
            self._last_plain_line = now
            self.line(f"  {text}")


_FOUND_BY = {"mdns": "found by mDNS", "addresses": "by address", "remembered": "at their last known addresses"}
