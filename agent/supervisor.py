"""One worker process: starts it, talks to it, and says why it died.

    daemon                                       worker (`python -m edgeswarm_agent.worker`, a session of its own)
      request() ─▶ outbox ─▶ [writer thread] ──stdin──▶  commands
      on_event  ◀────────── [reader thread] ◀─events fd─ events
      log file  ◀────────── [log thread]    ◀─stdout/err─
      on_death  ◀────────── [waiter thread]  ◀ its end

No call here waits on a worker that hangs beyond its own deadline: what is sent goes through a thread, `kill` ends what
doesn't end, and whoever waits for an answer is told when the worker dies. The worker leaves at the end of its stdin, so
that none lives on when the daemon is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.own_module import own_module
from edgeswarm.wire.v1 import agent_pb2, worker_pb2

from .bounded_log import BoundedLog
from .death import Remains, explain_death
from .pipe import MessagePipe, PipeBroken
from .telemetry.memory import oom_kills

# SIGTERM, then this long, then SIGKILL.
TERMINATE_SECONDS = 0.7
_DRAIN_SECONDS = 1.0

# How a worker's allocator is set; measured by bench/allocator.py.
ALLOCATOR_ENVIRONMENT = {
    # Big tensors through glibc's mmap cost up to five times the time, since each one's pages are made anew.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    # One heap for all threads. A further one is of pieces of 64 MiB: what doesn't fit one is mapped anew each time, and a
    # thread that computes there is up to a fifth slower. Those of links would each keep one as large as their largest frames.
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": ":".join(
        (
            # Huge pages: on small ones a process is up to twice as slow as its neighbour, as its addresses happen to fall.
            "glibc.malloc.hugetlb=1",
            # Freed small blocks are joined with their neighbours at once. Kept at hand they lie scattered between freed
            # activations, and the heap grows past what it needs, by an eighth or so (bench/allocator_peaks.py).
            "glibc.malloc.tcache_count=0",
            "glibc.malloc.mxfast=0",
        )
    ),
    # MKL's buffers for products of matrices go back to the heap behind each. Kept, they are up to 20 MiB of a worker's, and no
    # part of what a layer is seen to take where one before it had them made (bench/product_buffers.py).
    "MKL_DISABLE_FAST_MM": "1",
}
WORKER_ENVIRONMENT = {
    **ALLOCATOR_ENVIRONMENT,
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    # Cards by their place on the bus, as telemetry/card.py counts them; else the fastest is the first.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Deterministic matrix products on CUDA need it set before torch starts.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker is started. listen: host:port of its tensor server, port 0 for any free one.

    sample_folder: where it keeps samples that it fetched, sample_cache_bytes at most; in memory where it is None.
    command: what to run instead of the worker, for tests of its faults; the arguments are appended all the same.
    """

    device: str
    identity_folder: Path
    listen: str
    log_path: Path
    slow_down: float = 1.0
    threads: int = 1
    sample_folder: Path | None = None
    sample_cache_bytes: int = 0
    command: tuple[str, ...] = field(default=own_module("edgeswarm_agent.worker"))

    def arguments(self, events_fd: int) -> list[str]:
        return [
            *self.command,
            "--identity", str(self.identity_folder),
            "--listen", self.listen,
            "--slow-down", repr(self.slow_down),
            "--threads", str(self.threads),
            *(["--sample-folder", str(self.sample_folder)] if self.sample_folder is not None else []),
            "--sample-cache-bytes", str(self.sample_cache_bytes),
            "--events-fd", str(events_fd),
        ]  # fmt: skip

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, **WORKER_ENVIRONMENT, "OMP_NUM_THREADS": str(self.threads)}


class Pending:
    """A command that waits for its answer. `next` gives what comes for it, `abandon` gives up from any thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._arrived: queue.SimpleQueue[worker_pb2.WorkerEvent | EdgeswarmError] = queue.SimpleQueue()

    def put(self, event: worker_pb2.WorkerEvent | EdgeswarmError) -> None:
        self._arrived.put(event)

    def abandon(self, reason: str) -> None:
        self.put(EdgeswarmError(ErrorCode.STALE_CALL, reason))

    def next(self, timeout_seconds: float) -> worker_pb2.WorkerEvent:
        """The next event for this command. Raises: the worker's error, its death, queue.Empty at the time limit."""
        event = self._arrived.get(timeout=max(0.0, timeout_seconds))
        if isinstance(event, EdgeswarmError):
            raise event
        if event.HasField("failure"):
            raise failure_error(event.failure.error_json)
        return event


class WorkerProcess:
    """Starts at once.

    on_event: gets the hello and every event that answers no command. on_death: gets the reason, once, after the last
    event, unless `kill` ended it. Both run on threads of this object and must return soon.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        on_event: Callable[[worker_pb2.WorkerEvent], None],
        on_death: Callable[[EdgeswarmError], None],
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._on_death = on_death
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._last_number = 0
        self._progress: tuple[float, worker_pb2.WorkerEvent] | None = None
        self._end: EdgeswarmError | None = None
        self._kill_reason: str | None = None
        self._broke_off = False
        self._hung = ""
        self._hello = threading.Event()
        self._hello_event: worker_pb2.WorkerHello | None = None
        self._gone = threading.Event()
        self._outbox: queue.SimpleQueue[worker_pb2.WorkerCommand | None] = queue.SimpleQueue()
        self._oom_kills_before = oom_kills()
        self._log = BoundedLog(settings.log_path)
        self._process, self._pipe = self._spawn()
        self.process_id = self._process.pid
        self._reader = self._thread(self._read_events, "worker-events")
        self._thread(self._write_commands, "worker-commands")
        self._thread(self._wait_for_end, "worker-end")

    # --- what a caller asks ---------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._end is None and not self._gone.is_set()

    @property
    def end(self) -> EdgeswarmError | None:
        """Why it is gone; None while it lives."""
        return self._end

    def wait_hello(self, timeout_seconds: float) -> worker_pb2.WorkerHello:
        """Waits until the worker has imported torch and listens. Raises: its death, WORKER_FAILED at the time limit."""
        self._hello.wait(timeout_seconds)
        if self._hello_event is None:
            raise self._end or EdgeswarmError(
                ErrorCode.WORKER_FAILED,
                f"The worker on {self._settings.device} did not start within {timeout_seconds:.0f} s.",
                f"Look at {self._settings.log_path} there, and run `edgeswarm-agent doctor`.",
                detail=self._log.tail,
            )
        return self._hello_event

    def send(self, command: worker_pb2.WorkerCommand) -> Pending:
        """Sends a copy of the command under a number of its own. Raises the reason where the worker is gone."""
        with self._lock:
            if self._end is not None:
                raise self._end
            self._last_number += 1
            pending = self._pending[self._last_number] = Pending(self._last_number)
        numbered = worker_pb2.WorkerCommand()
        numbered.CopyFrom(command)
        numbered.number = pending.number
        self._outbox.put(numbered)
        return pending

    def request(self, command: worker_pb2.WorkerCommand, timeout_seconds: float) -> worker_pb2.WorkerEvent:
        """Sends a command and waits for its one answer.

        Raises: the worker's error or death, WORKER_FAILED where it is silent.
        """
        pending = self.send(command)
        try:
            return pending.next(timeout_seconds)
        except queue.Empty:
            raise self.silence(command, timeout_seconds) from None
        finally:
            self.forget(pending)

    def silence(self, command: worker_pb2.WorkerCommand, timeout_seconds: float) -> EdgeswarmError:
        """The error for a command that was not answered in time."""
        what, doing = command.WhichOneof("command"), self.progress().action
        return EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"The worker on {self._settings.device} did not answer `{what}` within {timeout_seconds:.0f} s"
            + (f" (its last sign of life: {doing})." if doing else "."),
            "Stop the job: that ends the worker. Its log is in " + str(self._settings.log_path),
        )

    def forget(self, pending: Pending) -> None:
        """No more events for this command are wanted."""
        with self._lock:
            self._pending.pop(pending.number, None)

    @property
    def reported(self) -> float:
        """When its last report came, by time.monotonic; 0 before the first one."""
        return 0.0 if self._progress is None else self._progress[0]

    def progress(self) -> agent_pb2.WorkerProgress:
        """Its last report; `action_seconds` goes on by our own clock, for a worker that can't report any more."""
        latest = agent_pb2.WorkerProgress()
        if self._progress is not None:
            when, event = self._progress
            latest.CopyFrom(event.progress)
            latest.action_seconds += time.monotonic() - when
        if self._hello_event is not None:
            latest.tensor_port = self._hello_event.port
        latest.running = self.alive
        latest.process_id = self.process_id
        return latest

    def kill(self, reason: str) -> None:
        """Ends it and its children: SIGTERM, then SIGKILL. Back when it is reaped, within 2 s.

        reason: why, for whoever waits for an answer of it. Its end is then no death: on_death isn't called.
        """
        with self._lock:
            if self._kill_reason is None:
                self._kill_reason = reason
        self._signal(signal.SIGTERM)
        if not self._gone.wait(TERMINATE_SECONDS):
            self._signal(signal.SIGKILL)
            self._gone.wait(TERMINATE_SECONDS)

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Whether it is reaped by then. One with gigabytes, or a card's context, takes longer to die than `kill` waits."""
        return self._gone.wait(timeout_seconds)

    def kill_hung(self, how: str) -> None:
        """Ends one that hangs, which is its death: on_death gets `how` in the reason. Its log gets where it stands, if it can."""
        with self._lock:
            if self._gone.is_set():
                return
            self._hung = how
        self._signal(signal.SIGABRT)
        if not self._gone.wait(TERMINATE_SECONDS):
            self._signal(signal.SIGKILL)
            self._gone.wait(TERMINATE_SECONDS)

    # --- the process ----------------------------------------------------------------------------------------------

    def _spawn(self) -> tuple[subprocess.Popen[bytes], MessagePipe]:
        events_read, events_write = os.pipe()
        try:
            process = subprocess.Popen(
                self._settings.arguments(events_write),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env=self._settings.environment(os.environ),
                pass_fds=(events_write,),
                # A Ctrl-C in the daemon's terminal is the daemon's to handle; `kill` reaches the whole group.
                start_new_session=True,
            )
        except OSError as error:
            os.close(events_read)
            raise EdgeswarmError(
                ErrorCode.WORKER_DIED,
                f"The worker on {self._settings.device} could not be started: {error}.",
                "Check the installation with `edgeswarm-agent doctor`.",
            ) from error
        finally:
            os.close(events_write)
        assert process.stdin is not None
        assert process.stdout is not None
        self._log.follow(process.stdout)  # type: ignore[arg-type]  # IO[bytes] is what typeshed calls a pipe's BinaryIO
        events = os.fdopen(events_read, "rb")
        return process, MessagePipe(events, process.stdin)  # type: ignore[arg-type]

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group. It is reaped under the same lock, so that its number can't be somebody else's."""
        with self._lock:
            if not self._gone.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process_id, number)

    # --- threads --------------------------------------------------------------------------------------------------

    def _write_commands(self) -> None:
        while (command := self._outbox.get()) is not None:
            try:
                self._pipe.send(command)
            except OSError:
                # It is dying, and its end is explained where it is reaped.
                return
            except ValueError as error:
                self._answer(command.number, EdgeswarmError(ErrorCode.PLAN_INVALID, f"{error}.", "Use smaller stages."))

    def _read_events(self) -> None:
        try:
            while (event := self._pipe.receive(worker_pb2.WorkerEvent)) is not None:
                self._take(event)
        except (PipeBroken, OSError):
            # Nothing that it says can be understood from here on. Its own mistake, or it died inside a message.
            pass
        if not self._gone.wait(_DRAIN_SECONDS):
            self._broke_off = True
            self._signal(signal.SIGKILL)

    def _take(self, event: worker_pb2.WorkerEvent) -> None:
        if event.HasField("hello"):
            self._hello_event = event.hello
            self._hello.set()
            self._on_event(event)
        elif event.HasField("progress"):
            self._progress = (time.monotonic(), event)
        elif not self._answer(event.number, event):
            self._on_event(event)

    def _answer(self, number: int, event: worker_pb2.WorkerEvent | EdgeswarmError) -> bool:
        """Whether somebody had asked (an answer to a call that was given up is nobody's event)."""
        with self._lock:
            pending = self._pending.get(number)
        if pending is not None:
            pending.put(event)
        return number != 0

    def _wait_for_end(self) -> None:
        # Look without reaping: until it is reaped, its process group's number is not given to anybody else.
        os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process_id, signal.SIGKILL)
        with self._lock:
            return_code = self._process.wait()
            self._gone.set()
        # Its last words first: an error that it reported itself says more than its exit code.
        self._reader.join(_DRAIN_SECONDS)
        self._log.finish(_DRAIN_SECONDS)
        self._finish(return_code)

    def _finish(self, return_code: int) -> None:
        remains = Remains(
            process_id=self.process_id,
            return_code=return_code,
            out_of_memory_kills=max(0, oom_kills() - self._oom_kills_before),
            log_tail=self._log.tail,
            killed_by_agent=self._broke_off,
            hung=self._hung,
        )
        with self._lock:
            killed = self._kill_reason is not None
            end = (
                EdgeswarmError(
                    ErrorCode.STALE_CALL, f"The worker on {self._settings.device} was ended: {self._kill_reason}."
                )
                if killed
                else explain_death(remains, device=self._settings.device)
            )
            self._end = end
            waiting = list(self._pending.values())
        self._hello.set()
        self._outbox.put(None)
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        for pending in waiting:
            pending.put(end)
        if not killed:
            self._on_death(end)


def failure_error(error_json: str) -> EdgeswarmError:
    """The EdgeswarmError that a worker's Failure carries."""
    try:
        document = json.loads(error_json)
        return EdgeswarmError.from_json({str(name): str(value) for name, value in document.items()})
    except (ValueError, AttributeError):
        return EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"The worker failed: {error_json[:1000]}",
            "Look at the agent's log there, and report it with that.",
        )
