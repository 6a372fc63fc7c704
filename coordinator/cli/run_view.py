"""Trainings as a person reads them: a table of all, or the details of one."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..planner.units import readable_seconds
from ..run_store import Run
from ..runs import LastEvaluation, RunRecord, RunState
from .live_line import clock_time, readable_rate
from .narrow import table_or_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEADINGS = ("job", "state", "progress", "loss", "samples/s", "left", "started", "devices")
_TO_THE_RIGHT = ("loss", "samples/s", "left")
_WITHOUT_A_WORD = "it was killed, or the machine went down"


def run_to_json(run: Run) -> dict[str, Any]:
    """The record, how it stands, and where its log is."""
    return {**run.record.to_json(), "state": run.state.value, "log": str(run.log_path)}


def runs_view(console: Console, runs: Sequence[Run], *, now: float) -> RenderableType:
    """A row for each training; a few lines for each where the table would be cut. now: seconds since 1970."""
    from rich.table import Table

    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in _TO_THE_RIGHT else "left")
    lines = []
    for run in runs:
        cells = _cells(run, now=now)
        table.add_row(*cells)
        named = dict(zip(HEADINGS, cells, strict=True))
        lines.append(f"{named['job']}: {named['state']}")
        rest = [named["progress"], *(f"{name} {named[name]}" for name in HEADINGS[3:7] if named[name])]
        lines.append(f"    {', '.join(part for part in rest if part)}")
        if named["devices"]:
            lines.append(f"    on {named['devices']}")
    return table_or_lines(console, table, lines)


def details(run: Run, *, now: float) -> list[tuple[str, str]]:
    """What is known of one training, as (heading, text). now: seconds since 1970."""
    record = run.record
    rows = [("job", record.job_id), ("state", _state(run))]
    if progress := _progress(run):
        rows.append(("progress", progress))
    if loss := _loss(record):
        rows.append(("loss", loss))
    if record.samples_per_second is not None:
        rows.append(("speed", f"{readable_rate(record.samples_per_second)} samples/s"))
    if left := _left(run):
        rows.append(("left", left))
    if record.evaluation is not None:
        rows.append(("evaluation", _evaluation(record.evaluation)))
    if record.checkpoint_round is not None:
        rows.append(("checkpoint", f"after round {record.checkpoint_round}"))
    if record.devices:
        rows.append(("devices", ", ".join(record.devices)))
    rows.append(("started", _moment(record.started, now=now)))
    if record.ended is not None:
        rows.append(("ended", _moment(record.ended, now=now)))
        rows.append(("took", readable_seconds(record.ended - record.started)))
    elif run.state is RunState.LOST:
        rows.append(("last sign", _moment(record.updated, now=now)))
    rows += [("job file", record.job_file), ("result", record.folder), ("log", str(run.log_path))]
    if record.exit_code:
        rows.append(("exit code", str(record.exit_code)))
    if record.failure is not None:
        rows += [("error", record.failure.message), ("remedy", record.failure.remedy)]
    elif run.state is RunState.LOST:
        command = f"edgeswarm train {shlex.quote(record.job_file)} --resume --output {shlex.quote(record.folder)}"
        remedy = f"`{command}` goes on from its last checkpoint"
        rows.append(("remedy", f"{remedy}." if record.checkpoint_round else f"{remedy}, where it had written one."))
    return rows


def _loss(record: RunRecord) -> str:
    """Empty before there is one; `nan` where it was no number, of which a record knows nothing but that a round was done."""
    if record.loss is None:
        return "" if record.samples_per_second is None else "nan"
    return f"{record.loss:.4f}"


def _cells(run: Run, *, now: float) -> tuple[str, ...]:
    record = run.record
    speed = record.samples_per_second
    return (
        record.job_id,
        run.state.value,
        _progress(run),
        _loss(record),
        "" if speed is None else readable_rate(speed),
        _left(run),
        _ago(now - record.started),
        ", ".join(record.devices),
    )


def _state(run: Run) -> str:
    record = run.record
    if run.state is RunState.RUNNING:
        place = "without a terminal, " if record.detached else ""
        where = f" on {record.host}" if run.elsewhere else ""
        return f"running ({place}process {record.process.pid}{where})"
    if run.state is RunState.LOST:
        return f"lost: it ended without a word, {_WITHOUT_A_WORD}"
    return str(run.state.value)


def _progress(run: Run) -> str:
    record = run.record
    running = run.state is RunState.RUNNING
    if record.rounds is not None:
        epoch = f", epoch {record.epoch + 1}" if record.epoch is not None else ""
        return f"round {record.round}/{record.rounds}{epoch}"
    return ", ".join(dict.fromkeys(record.steps)) if running else ""


def _left(run: Run) -> str:
    seconds = run.record.seconds_left
    return clock_time(seconds) if run.state is RunState.RUNNING and seconds is not None else ""


def _evaluation(evaluation: LastEvaluation) -> str:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in evaluation.metrics.items())
    return f"after epoch {evaluation.epoch + 1}: {metrics}{' (best so far)' if evaluation.best else ''}"


def _moment(moment: float, *, now: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}, {_ago(now - moment)}"


def _ago(seconds: float) -> str:
    """`42 s ago`, `3 min ago`, `5 h ago`, `2 days ago`"""
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s ago"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days ago"
