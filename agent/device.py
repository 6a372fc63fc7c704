"""A device while a job holds it: the reservation, its worker process, its events, and the lease.

    Reserve ─▶ worker starts            events ─▶ queue ─▶ the newest Watch
    Release, lease expired ─▶ worker ended, idle ─▶ a new worker waits a while for the next Reserve

The decisions are those of `Reservation`; here are the clock, the threads and the process. Two locks: `_change` is held
through a whole change of hands (up to 2 s, while a worker is ended), `_changed` only for a look at the state, so that
Describe and heartbeats never wait.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.process_memory import anonymous_bytes, major_page_faults
from edgeswarm.wire.v1 import agent_pb2, worker_pb2

from .hang import LOOK_SECONDS, SILENT_SECONDS, HangWatch
from .reservation import JobCall, Reservation
from .supervisor import WorkerProcess, WorkerSettings, failure_error
from .telemetry.hardware import Hardware
from .telemetry.hardware_now import HardwareNow
from .telemetry.memory import read_memory

HEARTBEAT_SECONDS = 0.5
HELLO_SECONDS = 120.0
# Enough for minutes of rounds while no Watch is open; the lease ends the job long before.
_KEPT_EVENTS = 4096
# After which is looked again: more than some years no wait of Python's takes.
_LONGEST_WAIT_SECONDS = 3600.0
# For a killed worker to be gone; less than callers wait.
_GONE_SECONDS = 6.0


@dataclass(frozen=True)
class LastPart:
    """What this device did in the last training that it had a part in. job_file: its path in the bundle."""

    job_file: str
    opened_data: bool


class Device:
    """What the control service acts on. Any thread may call; `close` ends everything.

    settings: of workers, whose threads are the hardware's. ready_worker_seconds: for which a new worker waits for the next job
    once one has ended; 0 for none, as on a card, of which a process that only waits would hold some memory.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        hardware: HardwareNow,
        log: Callable[[str], None],
        ready_worker_seconds: float = 0.0,
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._started_on: Hardware | None = None  # the worker
        self._log = log
        self._change = threading.Lock()
        self._changed = threading.Condition()
        self._reservation = Reservation(settings.device)
        self._worker: WorkerProcess | None = None
        self._ready_worker_seconds = ready_worker_seconds
        self._ready_until: float | None = None  # while a worker waits for a job
        self._last_part: LastPart | None = None
        self._has_loaded_ahead = False  # the worker, of a job
        self._measuring_job = ""  # that has measured here, or does
        self._events: deque[agent_pb2.AgentEvent] = deque(maxlen=_KEPT_EVENTS)
        self._beat_now = False
        self._closed = False
        self._hang_watch: HangWatch | None = None  # of the worker, once it has rehearsed
        self._hang_thread = threading.Thread(target=self._watch_for_hangs, name="hangs", daemon=True)
        self._hang_thread.start()
        self._lease_thread = threading.Thread(target=self._keep_lease, name="lease", daemon=True)
        self._lease_thread.start()

    @property
    def reservation(self) -> Reservation:
        return self._reservation

    # --- who holds it ---------------------------------------------------------------------------------------------

    def reserve(self, call: JobCall, *, who: str, lease_seconds: float) -> None:
        """Gives the device to the job and starts its worker. Raises: DEVICE_BUSY, STALE_CALL, WORKER_DIED."""
        with self._change:
            with self._changed:
                self._refuse_when_closed()
                self._reservation = self._reservation.reserve(
                    call, who=who, lease_seconds=lease_seconds, clock_seconds=time.time(), now=time.monotonic()
                )
                waited = self._ready_until is not None
                self._ready_until = None
                self._changed.notify_all()
            self._log(f"reserved by job {call.job_id} of {who}")
            try:
                if waited and self._is_outdated():
                    self._renew()
                self._living_worker()
            except EdgeswarmError:
                self._become_idle("its worker could not be started")
                raise

    def release(self, call: JobCall, reason: str) -> None:
        """Ends the job and its worker; the device is idle when this returns. Nothing to do where it is idle already.

        Raises: DEVICE_BUSY where another job holds it, STALE_CALL for an older term.
        """
        with self._change:
            if self._reservation.holding is None:
                return
            self.update(lambda reservation: reservation.admit(call))
            self._become_idle(reason or "its coordinator released the device")

    def close(self, reason: str) -> None:
        """The daemon stops: the worker is ended, open Watches end, nothing is reserved any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self._change:
            self._become_idle(reason)
        self._lease_thread.join()
        self._hang_thread.join()

    def update(self, decide: Callable[[Reservation], Reservation]) -> Reservation:
        """Replaces the reservation by what `decide` makes of it; an error that it raises leaves it as it is."""
        with self._changed:
            self._reservation = decide(self._reservation)
            self._changed.notify_all()
            return self._reservation

    # --- its worker -----------------------------------------------------------------------------------------------

    def worker(self, call: JobCall, *, start: bool) -> WorkerProcess:
        """The job's worker, once it listens. start: start a new one where the last died; else its death is raised.

        Raises: as `Reservation.admit`, WORKER_DIED, WORKER_FAILED.
        """
        with self._change:
            self.update(lambda reservation: reservation.admit(call))
            worker = self._worker
            if worker is None or worker.end is not None:
                if not start:
                    raise (worker.end if worker is not None else None) or EdgeswarmError(
                        ErrorCode.WORKER_DIED, f"{self._settings.device} has no worker.", "Prepare the job again."
                    )
                worker = self._living_worker()
        worker.wait_hello(HELLO_SECONDS)
        return worker

    def prepared(self, part: LastPart, *, rehearsal_seconds: float) -> None:
        """Its worker has got ready for this, and computed what it is to compute at once in so many seconds."""
        self._last_part = part
        # The rehearsal isn't slowed down.
        self._hang_watch = HangWatch(rehearsal_seconds * max(1.0, self._settings.slow_down))

    def load_ahead(self, call: JobCall, job_file: str, *, unpacked: Callable[[], Path]) -> None:
        """Has its worker load a job's file where the last one was of that name, and open the data sets where it did; back before.

        unpacked: gives the folder with the job's files. Raises: as `Reservation.admit`, and what `unpacked` does.
        """
        part = self._last_part
        if part is None or part.job_file != job_file:
            return
        command = worker_pb2.LoadAheadCommand(
            bundle_folder=str(unpacked()), job_file=job_file, opens_data=part.opened_data
        )
        with self._change:
            self.update(lambda reservation: reservation.admit(call))
            worker = self._worker
            if worker is None or worker.end is not None or self._measuring_job == call.job_id:
                return
            # One that it kills is not loaded ahead a second time: where it has no part any more, it need not load it at all.
            self._last_part = None
            self._has_loaded_ahead = True
            worker.forget(worker.send(worker_pb2.WorkerCommand(load_ahead=command)))

    def measuring_worker(self, call: JobCall) -> WorkerProcess:
        """The job's worker, once it listens: one that has loaded nothing, nor will before it is renewed. Raises: as `worker`."""
        with self._change:
            self.update(lambda reservation: reservation.admit(call))
            self._measuring_job = call.job_id
            if self._has_loaded_ahead:
                self._renew()
        return self.worker(call, start=True)

    def ready_worker_bytes(self) -> int:
        """Memory that the next job's worker holds already; 0 where none waits for one."""
        worker = self._worker
        if self._reservation.holding is not None or worker is None or not worker.alive:
            return 0
        return anonymous_bytes(worker.process_id)

    def renew_worker(self, call: JobCall) -> None:
        """Ends the job's worker and starts another one; back before that listens. Raises: as `worker`."""
        with self._change:
            self.update(lambda reservation: reservation.admit(call))
            self._renew()

    def _renew(self) -> None:
        """Under `_change`."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill("a new one takes its place")
            worker.wait_gone(_GONE_SECONDS)  # it has the port that the new one listens on
        self._living_worker()

    def _is_outdated(self) -> bool:
        """Whether the worker that waited is of no use: it has just died, or the device is another one by now."""
        worker = self._worker
        return worker is not None and not (worker.alive and self._started_on == self._hardware.read())

    def _living_worker(self) -> WorkerProcess:
        """Under `_change`."""
        if self._worker is None or self._worker.end is not None:
            self._hang_watch = None
            self._started_on = self._hardware.read()
            settings = replace(self._settings, threads=self._started_on.threads)
            self._worker = WorkerProcess(settings, on_event=self._on_event, on_death=self._on_death)
            self._has_loaded_ahead = False
            self._log(f"started worker {self._worker.process_id}")
        return self._worker

    def _become_idle(self, reason: str) -> None:
        """Under `_change`. The worker goes first, so that whoever sees the device idle finds its ports free."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill(reason)
        with self._changed:
            holding = self._reservation.holding
            self._reservation = self._reservation.released()
            self._events.clear()
            self._changed.notify_all()
        if holding is not None:
            self._log(f"free again: {reason} (job {holding.job_id})")
            self._start_ahead()

    def _start_ahead(self) -> None:
        """Under `_change`."""
        if self._closed or not self._ready_worker_seconds:
            return
        try:
            if self._hardware.read().accelerator != "cpu":
                return
            self._living_worker()
        except (EdgeswarmError, OSError, RuntimeError) as error:  # no files or threads are left: leases go on
            self._log(f"no worker waits for the next job: {error}")
            return
        with self._changed:
            self._ready_until = time.monotonic() + self._ready_worker_seconds
            self._changed.notify_all()

    def _end_ready_worker(self) -> None:
        """Under `_change`."""
        if self._ready_until is None or time.monotonic() < self._ready_until:
            return
        self._ready_until = None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill("no job came")
            self._log(f"ended worker {worker.process_id}: no job came")

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise EdgeswarmError(
                ErrorCode.DEVICE_UNREACHABLE, f"The agent on {self._settings.device} is stopping.", "Start it again."
            )

    # --- the lease ------------------------------------------------------------------------------------------------

    def _keep_lease(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                holding, now = self._reservation.holding, time.monotonic()
                if holding is not None:
                    left = holding.lease_left_seconds(now)
                else:
                    left = None if self._ready_until is None else self._ready_until - now
                if left is None or left > 0:
                    self._changed.wait(None if left is None else min(left, _LONGEST_WAIT_SECONDS))
                    continue
            with self._change:
                # A Watch may have come while this thread waited for its turn.
                holding = self._reservation.holding
                if holding is None:
                    self._end_ready_worker()
                elif holding.expired(time.monotonic()):
                    self._become_idle(f"its coordinator was away for {holding.lease_seconds:g} s")

    # --- a worker that hangs --------------------------------------------------------------------------------------

    def _watch_for_hangs(self) -> None:
        looked, reported, faulted = time.monotonic(), 0.0, 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, LOOK_SECONDS)
                if self._closed:
                    return
            now = time.monotonic()
            watch, worker = self._hang_watch, self._worker
            if watch is not None and worker is not None and worker.alive:
                progress, last = worker.progress(), worker.reported
                before, faulted = faulted, major_page_faults(worker.process_id)
                faults = max(0, faulted - before)
                if watch.hangs(
                    progress, since_last_seconds=now - looked, is_silent=last == reported, page_faults=faults
                ):
                    doing = f"{progress.action}, round {progress.round + 1}"
                    limit = watch.limit_seconds(progress)
                    worker.kill_hung(
                        f"for more than {SILENT_SECONDS:.0f} s nothing was heard of it; it was at this: {doing}"
                        if watch.is_silent
                        else f"for more than {limit:.0f} s it was at this: {doing}"
                    )
                reported = last
            looked = now

    # --- events ---------------------------------------------------------------------------------------------------

    def open_watch(self, call: JobCall) -> int:
        """A Watch begins; its number is for `events` and `watch_broken`. Raises: as `Reservation.admit`."""
        with self._changed:
            self._refuse_when_closed()
        holding = self.update(lambda reservation: reservation.watch_opened(call)).holding
        assert holding is not None
        return holding.watch

    def watch_broken(self, call: JobCall, watch: int) -> None:
        """The stream of that Watch broke: the lease begins to run, unless a newer Watch is open."""
        self.update(lambda reservation: reservation.watch_broken(call.job_id, watch, now=time.monotonic()))

    def events(self, call: JobCall, watch: int) -> Iterator[agent_pb2.AgentEvent]:
        """Heartbeats, the first one at once, and the job's events as they come; ends with the job or the Watch, or says that the
        agent was stopped.
        """
        next_beat = time.monotonic()
        beats = 0
        while True:
            event = None
            while event is None:
                with self._changed:
                    is_open = self._is_open(call, watch)
                    if not is_open:
                        break
                    wait = next_beat - time.monotonic()
                    if wait <= 0 or self._beat_now:
                        self._beat_now = False
                        break
                    if self._events:
                        event = self._events.popleft()
                    else:
                        self._changed.wait(wait)
            if not is_open:
                break
            if event is None:
                next_beat = time.monotonic() + HEARTBEAT_SECONDS
                event = _event(heartbeat=self._heartbeat(beats))
                beats += 1
            yield event
        if self._closed:
            error = EdgeswarmError(
                ErrorCode.DEVICE_LOST,
                f"The agent on {self._settings.device} was stopped.",
                "Start it again there (`edgeswarm-agent run`), and try again.",
            )
            yield _event(failure=agent_pb2.Failure(error_json=error_json(error)))

    def _is_open(self, call: JobCall, watch: int) -> bool:
        holding = self._reservation.holding
        return (
            not self._closed
            and holding is not None
            and holding.job_id == call.job_id
            and holding.watch == watch
            and holding.broken_since is None
        )

    def _heartbeat(self, number: int) -> agent_pb2.Heartbeat:
        worker = self._worker
        return agent_pb2.Heartbeat(
            number=number,
            worker=worker.progress() if worker is not None else None,
            memory_available_bytes=read_memory().available,
        )

    def _on_event(self, event: worker_pb2.WorkerEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "hello":
            if event.hello.accelerator and self._started_on is not None:
                self._hardware.settle(self._started_on.torch_version, event.hello.accelerator)
            # The heartbeat tells the port of its tensor server, for which everybody waits.
            with self._changed:
                self._beat_now = True
                self._changed.notify_all()
        elif kind == "rounds":
            self._queue(_event(rounds=event.rounds))
        elif kind == "evaluation":
            self._queue(_event(evaluation=event.evaluation))
        elif kind == "rounds_done":
            self._queue(_event(rounds_done=event.rounds_done))
        elif kind == "failure":
            self._log(f"the worker failed: {failure_error(event.failure.error_json)}")
            self._queue(_event(failure=event.failure))
        else:
            self._log(f"the worker sent an event that nobody asked for: {kind}")

    def _on_death(self, error: EdgeswarmError) -> None:
        self._log(f"{error}\n{error.detail}".rstrip())
        self._queue(_event(failure=agent_pb2.Failure(error_json=error_json(error), worker_died=True)))

    def _queue(self, event: agent_pb2.AgentEvent) -> None:
        with self._changed:
            if self._reservation.holding is not None:
                self._events.append(event)
                self._changed.notify_all()


def error_json(error: EdgeswarmError) -> str:
    """As a Failure carries it."""
    return json.dumps(error.to_json())


def _event(
    *,
    heartbeat: agent_pb2.Heartbeat | None = None,
    rounds: agent_pb2.RoundReports | None = None,
    evaluation: agent_pb2.EvaluationReport | None = None,
    rounds_done: agent_pb2.RoundsDone | None = None,
    failure: agent_pb2.Failure | None = None,
) -> agent_pb2.AgentEvent:
    return agent_pb2.AgentEvent(
        clock_seconds=time.time(),
        heartbeat=heartbeat,
        rounds=rounds,
        evaluation=evaluation,
        rounds_done=rounds_done,
        failure=failure,
    )
