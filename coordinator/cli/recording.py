"""Keeps the record of one `edgeswarm train`, for `edgeswarm status`, `stop` and `logs` of other terminals."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode

from ..events import Event, JobBegins
from ..options import TrainOptions
from ..processes import this_machine, this_process
from ..run_events import after, ended
from ..run_store import LOG_FILE, RecordFile, RunStore
from ..runs import RunRecord


class Recording:
    """A listener of one training's events.

    begun: told the run's folder as soon as it is there. warn: told what can't be kept; the training goes on without.
    must_be_kept: raise instead, since nobody could follow the training otherwise.
    """

    def __init__(
        self,
        store: RunStore,
        options: TrainOptions,
        *,
        begun: Callable[[Path], None],
        warn: Callable[[str], None],
        must_be_kept: bool,
    ) -> None:
        self._store = store
        self._options = options
        self._begun = begun
        self._warn = warn
        self._must_be_kept = must_be_kept
        self._file: RecordFile | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobBegins):
            self._begin(event.job_id)
        elif self._file is not None:
            self._file.record = after(self._file.record, event, now=time.time())

    def told(self) -> dict[str, object]:
        """Which training this is, and where to look for it."""
        assert self._file is not None, "a training begins before it does anything"
        record = self._file.record
        return {
            "job_id": record.job_id,
            "pid": record.process.pid,
            "folder": record.folder,
            "log": str(self._store.folder_of(record.job_id) / LOG_FILE),
        }

    def detached(self) -> None:
        """The training has no terminal from now on."""
        if self._file is not None and not self._file.record.detached:
            self._file.record = replace(self._file.record, detached=True)

    def end(self, error: EdgeswarmError | None) -> None:
        """Write the end. error: None where all went well."""
        if self._file is None:
            return
        self._file.record = ended(self._file.record, error, now=time.time())
        self._file.close()
        if self._file.problem is not None:
            self._warn(f"The record of this training is not up to date: {self._file.problem}.")

    def _begin(self, job_id: str) -> None:
        now = time.time()
        try:
            folder = self._store.folder_of(job_id)
            self._begun(folder)
            record = RunRecord(
                job_id=job_id,
                name=self._options.job_name,
                job_file=str(self._options.job_path.absolute()),
                folder=str(self._options.result_folder.absolute()),
                process=this_process(),
                host=socket.gethostname(),
                machine=this_machine(),
                started=now,
                updated=now,
            )
            self._file = RecordFile(folder, record)
            if self._must_be_kept and self._file.problem is not None:
                raise self._file.problem
            self._store.forget_old()
        except (OSError, EdgeswarmError) as error:
            problem = error.message if isinstance(error, EdgeswarmError) else str(error)
            if self._must_be_kept:
                raise EdgeswarmError(
                    ErrorCode.OUTPUT_FAILED,
                    f"Nobody could follow the training in the background: {problem}",
                    f"Make room in {self._store.folder}, or train without --detach.",
                ) from error
            self._warn(f"No record of this training is kept: {problem}")


@contextlib.contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Around the training: its end is written, whatever it is."""
    try:
        yield
    except EdgeswarmError as error:
        recording.end(error)
        raise
    except KeyboardInterrupt:
        recording.end(EdgeswarmError(ErrorCode.INTERRUPTED, "Interrupted."))
        raise
    except BaseException as error:
        recording.end(EdgeswarmError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}", "Report it with the log."))
        raise
    recording.end(None)
