"""Supervision of one job: every device's events, probes, the user's wish to stop and our own tasks meet here, in one thread.

    watch threads (one a device) ──┐
    probe threads ─────────────────┼── queue ── pump() ── job_state.advance ── verdict, probes
    tasks, cancel, local checks ───┘

Whoever waits, waits through this class, so that no failure is noticed late.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgeswarm.config import LOST_SECONDS
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.printable import printable
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .background import Task
from .job_state import (
    Cancelled,
    Failed,
    Freed,
    Happening,
    Heard,
    JobState,
    OwnFailure,
    Phase,
    PhaseBegins,
    ProbeAnswered,
    RoundsFinished,
    Tick,
    WatchBroken,
    Watched,
    advance,
)
from .suspended import LONGEST_NAP_SECONDS, SleepWatch, slept

_POLL_SECONDS = 0.05

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Arrival:
    """Something for the queue; `event` where an agent sent it. when: it came, whenever the main thread takes it."""

    device: str
    event: agent_pb2.AgentEvent | None = None
    happening: Happening | None = None
    when: float = field(default_factory=time.monotonic)


class Supervision:
    """cancel: set by whoever wants the job to stop. on_round, on_evaluation: called with each such report, in the waiting thread.

    on_action: called likewise with a device and what its worker has begun to do, as it says itself.

    own_check: looked at now and then; returns an error of this machine's own helpers (the data service), or None.

    lost_seconds: within which it is known that a silent device is lost.
    """

    def __init__(
        self,
        *,
        cancel: threading.Event,
        on_round: Callable[[str, agent_pb2.RoundReport], None] = lambda device, report: None,
        lost_seconds: float = LOST_SECONDS,
    ) -> None:
        self.on_round = on_round
        self.on_evaluation: Callable[[str, agent_pb2.EvaluationReport], None] = lambda device, report: None
        self.on_action: Callable[[str, str], None] = lambda device, action: None
        self._sleep = SleepWatch()
        self.own_check: Callable[[], EdgeswarmError | None] = lambda: None
        self._cancel = cancel
        self._state = JobState(lost_seconds=lost_seconds)
        self._queue: queue.Queue[_Arrival] = queue.Queue()
        self._links: dict[str, AgentLink] = {}
        self._calls: dict[str, Any] = {}
        self._tensor_ports: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._ended_workers: dict[str, int] = {}
        self._actions: dict[str, str] = {}
        self._freed: set[str] = set()
        self._tasks: list[Task[Any]] = []

    @property
    def state(self) -> JobState:
        return self._state

    @property
    def tensor_ports(self) -> dict[str, int]:
        """By device: where its worker listens, of those that have said so."""
        return dict(self._tensor_ports)

    def expect_new_worker(self, device: str) -> None:
        """The worker that was heard of last is ended: where it listened is of no interest any more."""
        self._tensor_ports.pop(device, None)
        if device in self._workers:
            self._ended_workers[device] = self._workers[device]

    def watch(self, link: AgentLink, job: agent_pb2.JobReference) -> None:
        """Listen to the device's events from now on, until it is freed."""
        self._links[link.node_id] = link
        self._apply(Watched(link.node_id))
        call = link.stub.Watch(agent_pb2.WatchRequest(job=job))
        self._calls[link.node_id] = call
        threading.Thread(target=self._listen, args=(link, call), name=f"watch {link.node_id}", daemon=True).start()

    def free(self, device: str) -> None:
        """What happens to the device is of no interest any more."""
        self._freed.add(device)
        self._apply(Freed(device))
        call = self._calls.pop(device, None)
        if call is not None:
            call.cancel()

    def begin(self, phase: Phase, *, epoch: int = 0, end_round: int = 0) -> None:
        self._apply(PhaseBegins(phase, epoch=epoch, end_round=end_round))

    def spawn(self, function: Callable[[], Result], *, name: str, device: str | None = None) -> Task[Result]:
        """Run a function beside the main thread. When it fails, whoever waits for anything learns it.

        device: whom to blame then; None for our own machine.
        """
        task = Task(function, name=name, device=device)
        self._tasks.append(task)
        return task

    def wait(self, *tasks: Task[Any]) -> list[Any]:
        """The results of these tasks, in order. Raises the job's verdict as soon as there is one."""
        self.wait_until(lambda: all(task.done and task.error is None for task in tasks))
        return [task.result() for task in tasks]

    def abandon_tasks(self, *, wait_seconds: float) -> None:
        """End what still runs; all of them together get `wait_seconds` to notice."""
        deadline = time.monotonic() + wait_seconds
        for task in self._tasks:
            task.abandon(wait_seconds=max(0.0, deadline - time.monotonic()))
        self._tasks.clear()

    def wait_until(
        self,
        done: Callable[[], bool],
        *,
        timeout_seconds: float | None = None,
        late: Callable[[], EdgeswarmError] | None = None,
    ) -> None:
        """Waits until `done`; raises what `late` makes after the timeout, and the job's verdict as soon as there is one."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self.raise_verdict()
        while not done():
            if deadline is not None and late is not None and time.monotonic() > deadline:
                raise late()
            self.pump()
            self.raise_verdict()

    def pump(self) -> None:
        """Take in what has arrived, or wait a moment for something."""
        asleep_seconds = self._sleep.slept_seconds()
        if asleep_seconds > LONGEST_NAP_SECONDS and self._state.devices:  # before what devices say of it
            self._apply(OwnFailure(slept(asleep_seconds)))
        try:
            arrival = self._queue.get(timeout=_POLL_SECONDS)
            while True:
                self._take(arrival)
                arrival = self._queue.get_nowait()
        except queue.Empty:
            pass
        self._blame_failed_tasks()
        own_error = self.own_check()
        if own_error is not None:
            self._apply(OwnFailure(own_error))
        self._apply(Tick())

    def raise_verdict(self) -> None:
        """Raises the error for which the job is over, if it is."""
        if self._cancel.is_set():
            self._apply(Cancelled())
        if self._state.error is not None:
            raise self._state.error

    def _blame_failed_tasks(self) -> None:
        done = [task for task in self._tasks if task.done]  # asked once: one that fails meanwhile is for the next time
        self._tasks = [task for task in self._tasks if task not in done]
        for task in done:
            if task.error is None:
                continue
            error = task.error
            if not isinstance(error, EdgeswarmError):
                assert error is not None, "only failed tasks are looked at"
                raise error
            if task.device in self._freed:
                continue  # it was in the middle of something when we let it go
            if task.device is not None and task.device in self._state.devices:
                self._apply(Failed(task.device, error))
            else:
                self._apply(OwnFailure(error))

    def _take(self, arrival: _Arrival) -> None:
        if arrival.happening is not None:
            self._apply(arrival.happening)
        event, device = arrival.event, arrival.device
        if event is None or device in self._freed:
            return
        self._apply(Heard(device), when=arrival.when)
        kind = event.WhichOneof("event")
        if kind == "heartbeat" and event.heartbeat.worker.tensor_port:
            worker = event.heartbeat.worker
            self._workers[device] = worker.process_id
            if worker.process_id != self._ended_workers.get(device):
                self._tensor_ports[device] = worker.tensor_port
            if worker.action != self._actions.get(device):
                self._actions[device] = worker.action
                self.on_action(device, printable(worker.action))
        elif kind == "rounds":
            for report in event.rounds.reports:
                self.on_round(device, report)
        elif kind == "evaluation":
            self.on_evaluation(device, event.evaluation)
        elif kind == "rounds_done":
            self._apply(RoundsFinished(device, event.rounds_done.epoch, event.rounds_done.next_round))
        elif kind == "failure":
            self._apply(Failed(device, error_in(event.failure, device=device), tuple(event.failure.suspects)))

    def _apply(self, happening: Happening, *, when: float | None = None) -> None:
        """when: it happened, where that isn't now."""
        self._state, probes = advance(self._state, happening, now=time.monotonic() if when is None else when)
        for device in probes:
            threading.Thread(target=self._probe, args=(device,), name=f"probe {device}", daemon=True).start()

    def _listen(self, link: AgentLink, call: Any) -> None:
        try:
            for event in call:
                self._queue.put(_Arrival(link.node_id, event=event))
            error = EdgeswarmError(
                ErrorCode.LINK_BROKEN, "it ended the stream of its events.", "Look at the agent's log on that device."
            )
        except Exception as failure:  # whatever ends the stream, the device isn't watched any more
            error = link.error_of(failure, doing="listen to its events")
        self._queue.put(_Arrival(link.node_id, happening=WatchBroken(link.node_id, error)))

    def _probe(self, device: str) -> None:
        alive = self._links[device].answers()
        self._queue.put(_Arrival(device, happening=ProbeAnswered(device, alive)))


def error_in(failure: agent_pb2.Failure, *, device: str) -> EdgeswarmError:
    """The error that a failure message carries."""
    try:
        document = json.loads(failure.error_json)
        return EdgeswarmError.from_json({str(key): str(value) for key, value in document.items()})
    except (ValueError, AttributeError):
        code = ErrorCode.WORKER_DIED if failure.worker_died else ErrorCode.WORKER_FAILED
        return EdgeswarmError(code, f"The worker on {device} failed.", "Look at the agent's log there.")
