"""The folder of runs: one folder for each training, with its record and what it said.

<state folder>/runs/digits-20260105T101500Z-1f3a/
    run.json     the record (runs.py), replaced whole, at most once a second
    log.txt      its progress, plain; of a training in the background also whatever else it says
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.files import make_private_folder, write_atomically

from .processes import lives, this_machine
from .runs import RunRecord, RunState

RECORD_FILE = "run.json"
LOG_FILE = "log.txt"
KEPT_ENDED_RUNS = 50
_WRITE_EVERY_SECONDS = 1.0
# A machine that shares our folder writes with each round, if it is still there: one that was installed anew isn't.
_SILENT_ELSEWHERE_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Run:
    """A training as it stands now. folder: its own, in the folder of runs."""

    record: RunRecord
    state: RunState
    folder: Path

    @property
    def log_path(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def elsewhere(self) -> bool:
        """It was started on another machine that shares our state folder: whether it lives can't be seen from here."""
        return self.record.machine != this_machine()


class RunStore:
    """All trainings of this user. Nothing is made before `folder_of` is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unreadable: list[EdgeswarmError] = []  # what the last look came across

    @classmethod
    def of(cls, folders: Folders) -> RunStore:
        return cls(folders.state_dir / "runs")

    def folder_of(self, job_id: str) -> Path:
        """The training's folder, made. Raises EdgeswarmError (CONFIG)."""
        return make_private_folder(self.folder / job_id)

    def all(self) -> list[Run]:
        """Newest first. Records that can't be read are in `unreadable`."""
        self.unreadable = []
        return sorted(self._read(), key=lambda run: run.record.started, reverse=True)

    def running(self) -> list[Run]:
        """Newest first."""
        return [run for run in self.all() if run.state is RunState.RUNNING]

    def find(self, job: str) -> Run:
        """The training of this id; without one that of this job name, and else that whose id begins so.

        Of several the one that runs. Raises EdgeswarmError: NO_SUCH_JOB; CONFIG where it could be several.
        """
        runs = self.all()
        found = [run for run in runs if run.record.job_id == job]
        found = found or [run for run in runs if run.record.name == job]
        found = found or [run for run in runs if run.record.job_id.startswith(job)]
        if len(found) > 1:
            found = [run for run in found if run.state is RunState.RUNNING] or found
        if len(found) == 1:
            return found[0]
        if not found:
            raise EdgeswarmError(
                ErrorCode.NO_SUCH_JOB,
                f"There is no training {job!r} here.",
                "`edgeswarm status --all` lists those that this machine knows.",
            )
        ids = ", ".join(run.record.job_id for run in found)
        raise EdgeswarmError(ErrorCode.CONFIG, f"{job!r} could be any of {len(found)} trainings: {ids}.", "Name one.")

    def only_one_running(self) -> Run:
        """Raises EdgeswarmError: NO_SUCH_JOB where none runs; CONFIG where several do."""
        running = self.running()
        if len(running) == 1:
            return running[0]
        if not running:
            raise EdgeswarmError(
                ErrorCode.NO_SUCH_JOB, "No training runs here.", "`edgeswarm status` lists those of the last day."
            )
        ids = ", ".join(run.record.job_id for run in running)
        raise EdgeswarmError(ErrorCode.CONFIG, f"{len(running)} trainings run: {ids}.", "Say which one.")

    def forget_old(self) -> None:
        """Remove all but the newest of the trainings that are over."""
        over = [run for run in self.all() if run.state is not RunState.RUNNING]
        for run in over[KEPT_ENDED_RUNS:]:
            shutil.rmtree(run.folder, ignore_errors=True)

    def _read(self) -> Iterator[Run]:
        for path in self.folder.glob(f"*/{RECORD_FILE}"):
            try:
                run = read_run(path.parent)
            except EdgeswarmError as error:
                self.unreadable.append(error)
                continue
            except FileNotFoundError:
                continue  # another command has just removed it
            yield run


def read_run(folder: Path) -> Run:
    """Raises EdgeswarmError (CONFIG) where the record is damaged, FileNotFoundError where there is none."""
    path = folder / RECORD_FILE
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise EdgeswarmError(
            ErrorCode.CONFIG, f"{path} can't be read: {error}.", f"Remove the folder {folder}."
        ) from error
    record = RunRecord.from_json(document, where=str(path))
    if record.machine == this_machine():
        alive = lives(record.process)
    else:
        alive = time.time() - record.updated < _SILENT_ELSEWHERE_SECONDS
    return Run(record, record.state(alive=alive), folder)


class RecordFile:
    """Keeps run.json up to date from a thread of its own, so that a slow disk never holds up a training.

    What can't be written is told once through `problem`; the training goes on.
    """

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.record = record
        self.problem: OSError | None = None
        self._path = folder / RECORD_FILE
        self._written: RunRecord | None = None
        self._over = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep, name="run record", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last write."""
        self._over.set()
        self._thread.join()
        self._write()

    def _keep(self) -> None:
        while not self._over.wait(_WRITE_EVERY_SECONDS):
            self._write()

    def _write(self) -> None:
        record = self.record
        if record is self._written:
            return
        try:
            write_atomically(self._path, json.dumps(record.to_json(), indent=1).encode())
        except OSError as error:
            self.problem = error
            return
        self._written = record
