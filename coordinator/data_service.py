"""The data service as the coordinator sees it: start it, wait until it listens, stop it. Imports no torch."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.own_module import own_module

# The data set was opened before, in the command, however long that took; and Ctrl-C ends the wait.
READY_SECONDS = 3600.0
STOP_SECONDS = 2.0
_LOG_TAIL_BYTES = 8000
_MOST_LOG_BYTES = 4 * 1024**2


@dataclass(frozen=True)
class DataServiceSettings:
    """What the service is told. Paths are absolute.

    identity_folder: of the operator. listen_address: "host:port", port 0 for any. job_folder, job_file: the user's own
    files, not the bundle: the data set may lie beside them. snapshot_folder: with layer-<i>.safetensors, which may come
    later than the service. snapshot_round: the round that begins with these layers. serves_samples: else the layers alone, and
    the job isn't loaded.
    """

    identity_folder: str
    listen_address: str
    job_folder: str
    job_file: str
    job_id: str
    snapshot_folder: str
    snapshot_round: int = 0
    serves_samples: bool = True


@dataclass(frozen=True)
class DataServiceReady:
    """The ports where it listens: for those who fetch layers, as it was told, and behind that one for streams of samples, or 0
    where none are served. host: the only address of this machine where it does; None for all of them.
    """

    layers_port: int
    samples_port: int
    host: str | None = None


class DataServiceProcess:
    """One data service. It ends with this process at the latest, since it holds the other end of a pipe.

    log_path: where its stderr goes, what the user's data set prints; of much the end is kept. current_folder: where it begins;
    None for this process's own, which the job's code may have changed.
    """

    def __init__(self, settings: DataServiceSettings, *, log_path: Path, current_folder: Path | None = None) -> None:
        self._settings = settings
        self._log_path = log_path
        self._current_folder = current_folder
        self._process: subprocess.Popen[str] | None = None
        self._answer: queue.Queue[str] = queue.Queue()
        self._answered = threading.Event()

    def start(self) -> None:
        """Start it and return at once: what it imports and opens takes seconds, in which other things can be done."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                own_module("edgeswarm_coordinator.data_server"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._current_folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C in the terminal is for the command, which then stops us in order
            )
        self._say(json.dumps(asdict(self._settings)))
        threading.Thread(target=self._read_answer, name="data-service-answer", daemon=True).start()

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> DataServiceReady:
        """Lets it open the data set, and waits until it listens.

        Call it when nobody else is opening the data set for the first time: one that downloads would do so twice at once.
        Raises the EdgeswarmError that it reports, or DATA_FAILED where it died or hangs.
        """
        self._say("open")
        try:
            line = self._answer.get(timeout=timeout_seconds)
        except queue.Empty:
            raise self._failed(
                f"The data service did not open the dataset within {timeout_seconds:g} s.",
                "Make the job's dataset() quicker: prepare the data beforehand.",
            ) from None
        if not line:
            self._answer.put("")
            raise self._died()
        document = json.loads(line)
        if "error" in document:
            raise EdgeswarmError.from_json(document["error"])
        return DataServiceReady(**document)

    def check(self) -> None:
        """Raises EdgeswarmError (DATA_FAILED) where it isn't running any more. To be called now and then: it cuts the log too."""
        if self._process is not None and self._process.poll() is not None:
            raise self._died()
        self._cut_log()

    def stop(self) -> None:
        """End it: by closing its stdin, then by signals. May be called twice, and where it never started."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass  # it is gone already
            if not self._answered.is_set():
                process.terminate()  # it looks at its stdin only once it serves
            for end in (process.terminate, process.kill):
                try:
                    process.wait(STOP_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    end()
            process.wait()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what the user's data set has started: a pool of processes, say

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it died, or was stopped; wait_ready says why

    def _read_answer(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            line = stdout.readline()
        self._answered.set()
        self._answer.put(line)

    def _died(self) -> EdgeswarmError:
        assert self._process is not None
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self._failed("The data service closed its answer without a word.", "Look into the details.")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return self._failed(
            f"The data service ended {how}.",
            "It had too little memory, or was killed; free memory on this machine and start the job again."
            if code == -signal.SIGKILL
            else "Look into the details, and correct the job's dataset.",
        )

    def _cut_log(self) -> None:
        """A data set that prints something for each sample would fill the disk. What it writes meanwhile may be lost."""
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > _MOST_LOG_BYTES:
                tail = self._log_tail()
                os.truncate(self._log_path, 0)  # the service appends, so it goes on at the new end
                with self._log_path.open("ab") as log:
                    log.write(tail)

    def _log_tail(self) -> bytes:
        with self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read(_LOG_TAIL_BYTES)

    def _failed(self, message: str, remedy: str) -> EdgeswarmError:
        tail = b""
        with contextlib.suppress(OSError):
            tail = self._log_tail()
        return EdgeswarmError(ErrorCode.DATA_FAILED, message, remedy, detail=tail.decode(errors="replace"))
