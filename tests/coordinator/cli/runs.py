"""Trainings as other commands left them, for the tests of those that look at them."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError
from edgeswarm_coordinator.processes import this_machine, this_process
from edgeswarm_coordinator.run_events import ended
from edgeswarm_coordinator.run_store import LOG_FILE, RECORD_FILE, RunStore
from edgeswarm_coordinator.runs import LastEvaluation, ProcessName, RunRecord

GONE = ProcessName(1, "another boot")
LONG_AGO_SECONDS = 3 * 24 * 3600.0


def leave_run(
    home: Path,
    job_id: str,
    *,
    process: ProcessName | None = None,
    over: bool = False,
    error: EdgeswarmError | None = None,
    age_seconds: float = 60.0,
    said: str = "",
    host: str = "",
    loss: float | None = 0.5,
) -> Path:
    """A training in its rounds; its own folder. process: this one by default. loss: None for no number. over: it ended, by
    `error` or well.
    """
    started = time.time() - age_seconds
    record = RunRecord(
        job_id=job_id,
        name=job_id.split("-", maxsplit=1)[0],
        job_file="/home/me/digits.py",
        folder="/home/me/edgeswarm-out-digits",
        process=process or this_process(),
        host=host or socket.gethostname(),
        machine=host or this_machine(),
        started=started,
        updated=started + 30.0,
        devices=("nano-1-0a4f22", "nano-2-bbbbbb"),
        round=12,
        rounds=184,
        epoch=2,
        loss=loss,
        samples_per_second=845.4,
        seconds_left=101.0,
        evaluation=LastEvaluation(1, {"loss": 0.6, "accuracy": 0.91}, best=True),
        checkpoint_round=10,
    )
    if over or error is not None:
        record = ended(record, error, now=started + 30.0)
    folder = RunStore.of(Folders.within(home)).folder_of(job_id)
    (folder / LOG_FILE).write_text(said)
    write_record(folder, record)
    return folder


def end_run(folder: Path, error: EdgeswarmError | None = None) -> None:
    """Its record says from now on that it is over."""
    record = RunRecord.from_json(json.loads((folder / RECORD_FILE).read_bytes()), where="run.json")
    write_record(folder, ended(record, error, now=time.time()))


def write_record(folder: Path, record: RunRecord) -> None:
    unfinished = folder / "unfinished"
    unfinished.write_text(json.dumps(record.to_json()))
    unfinished.replace(folder / RECORD_FILE)
