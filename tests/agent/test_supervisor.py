"""Supervision of a worker process: real processes that die in every way."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.own_module import own_module
from edgeswarm.wire.v1 import agent_pb2, worker_pb2
from edgeswarm_agent.supervisor import WorkerProcess, WorkerSettings

from .processes import exists, group_members, stand_in, wait_until
from .stand_in_worker import PORT

START = worker_pb2.WorkerCommand(start=agent_pb2.StartRequest(first_round=3, end_round=5))
HALT = worker_pb2.WorkerCommand(halt=agent_pb2.HaltRequest())


class Watched:
    """A worker and what came of it."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.events: list[worker_pb2.WorkerEvent] = []
        self.deaths: queue.SimpleQueue[EdgeswarmError] = queue.SimpleQueue()
        self.log_path = folder / "logs" / "worker.log"
        settings = WorkerSettings(
            device="nano-1",
            identity_folder=folder,
            listen="127.0.0.1:0",
            log_path=self.log_path,
            threads=3,
            command=stand_in(mode),
        )
        self.process = WorkerProcess(settings, on_event=self.events.append, on_death=self.deaths.put)

    def kinds(self) -> list[str | None]:
        return [event.WhichOneof("event") for event in list(self.events)]


Start = Callable[[str], Watched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Watched] = []

    def begin(mode: str) -> Watched:
        workers.append(Watched(mode, tmp_path))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.process.kill("the test is over")
        assert not exists(worker.process.process_id)


def test_answers_go_to_who_asked_and_other_events_to_the_callback(start: Start) -> None:
    worker = start("answer")
    assert worker.process.wait_hello(10.0).port == PORT
    assert worker.process.request(START, 10.0).HasField("started")
    assert worker.process.request(HALT, 10.0).halted.next_round == 5
    assert worker.kinds() == ["hello", "rounds", "rounds", "rounds_done"]
    assert [report.round for event in worker.events[1:3] for report in event.rounds.reports] == [3, 4]


def test_progress_is_the_latest_report_and_goes_on_by_our_clock(start: Start) -> None:
    worker = start("answer")
    wait_until(lambda: worker.process.progress().action == "thinking")
    progress = worker.process.progress()
    assert progress.running
    assert progress.process_id == worker.process.process_id
    assert progress.tensor_port == PORT
    assert list(progress.waiting_for) == ["nano-9"]
    assert worker.process.progress().action_seconds > progress.action_seconds > 1.0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("exit-3", "exit code 3: it was nice here"),
        ("raise", "exit code 1: RuntimeError: the model ate the homework"),
        ("no-module", "ModuleNotFoundError"),
        ("SIGILL", "(SIGILL)"),
        ("SIGKILL", "(SIGKILL)"),
        ("garbage", "stopped talking to the agent"),
    ],
)
def test_a_death_is_explained_to_who_waits_and_to_the_callback(start: Start, mode: str, expected: str) -> None:
    worker = start(mode)
    worker.process.wait_hello(10.0)
    with pytest.raises(EdgeswarmError) as caught:
        worker.process.request(START, 10.0)
    assert caught.value.code is ErrorCode.WORKER_DIED
    assert expected in caught.value.message
    assert worker.deaths.get(timeout=5.0) is caught.value
    assert not worker.process.alive
    assert not worker.process.progress().running
    with pytest.raises(EdgeswarmError, match="died"):
        worker.process.send(HALT)


def test_a_traceback_is_in_the_detail_and_in_the_log(start: Start) -> None:
    worker = start("raise")
    worker.process.send(START)
    death = worker.deaths.get(timeout=10.0)
    assert "Traceback" in death.detail
    assert "ate the homework" in worker.log_path.read_text()


def test_a_death_before_the_hello_ends_the_wait_for_it(start: Start) -> None:
    worker = start("at-once:no-module")
    with pytest.raises(EdgeswarmError, match="a_module_that_nobody_has"):
        worker.process.wait_hello(10.0)


def test_a_log_that_grows_is_cut(start: Start) -> None:
    worker = start("chatter")
    worker.process.send(START)
    death = worker.deaths.get(timeout=20.0)
    assert "line 59999" in death.detail
    files = sorted(worker.log_path.parent.iterdir())
    assert [file.name for file in files] == ["worker.log", "worker.log.1"]
    assert all(file.stat().st_size <= 1024 * 1024 for file in files)


def test_an_error_that_the_worker_reports_is_not_its_death(start: Start) -> None:
    worker = start("failure")
    worker.process.send(START)
    wait_until(lambda: "failure" in worker.kinds())
    assert worker.process.request(HALT, 10.0).HasField("halted")
    assert worker.process.alive


@pytest.mark.parametrize("mode", ["deaf", "SIGSTOP"])
def test_kill_ends_a_worker_that_does_not_listen_and_its_children(start: Start, mode: str) -> None:
    worker = start(mode)
    pending = worker.process.send(START)
    if mode == "deaf":
        wait_until(lambda: "rounds" in worker.kinds())
    else:
        wait_until(lambda: psutil.Process(worker.process.process_id).status() == psutil.STATUS_STOPPED)
    worker.process.wait_hello(10.0)
    worker.process.kill("it was too slow")
    assert not exists(worker.process.process_id)
    wait_until(lambda: not group_members(worker.process.process_id))
    with pytest.raises(EdgeswarmError, match="it was too slow"):
        pending.next(5.0)
    assert worker.deaths.empty()


def test_a_worker_that_hangs_dies_of_it_and_tells_where_it_stood(start: Start) -> None:
    """Of the real one faulthandler writes where it stood; here any program that has it on."""
    worker = start("at-once:asleep")
    wait_until(lambda: worker.log_path.exists() and "asleep" in worker.log_path.read_text())
    worker.process.kill_hung("for more than 10 s it was at this: forward of micro-batch 3, round 7")
    error = worker.deaths.get(timeout=5)
    assert error.code is ErrorCode.WORKER_DIED
    assert "hung" in error.message
    assert "forward of micro-batch 3, round 7" in error.message
    assert "in fault" in error.detail
    assert not worker.process.alive


def test_silence_is_an_error_that_names_what_it_did_last(start: Start) -> None:
    worker = start("SIGSTOP")
    worker.process.wait_hello(10.0)
    wait_until(lambda: worker.process.progress().action == "thinking")
    with pytest.raises(EdgeswarmError, match=r"did not answer `start` within 0 s \(its last sign of life: thinking\)"):
        worker.process.request(START, 0.2)


def test_commands_larger_than_the_pipe_do_not_block_who_sends_to_a_worker_that_hangs(start: Start) -> None:
    worker = start("SIGSTOP")
    worker.process.wait_hello(10.0)
    worker.process.send(START)
    large = worker_pb2.PrepareCommand(request=agent_pb2.PrepareRequest(plan_json=bytes(4_000_000)))
    worker.process.send(worker_pb2.WorkerCommand(prepare=large))
    worker.process.kill("enough")
    assert not worker.process.alive


def test_who_waits_can_give_up_from_another_thread(start: Start) -> None:
    worker = start("SIGSTOP")
    pending = worker.process.send(START)
    timer = threading.Timer(0.1, pending.abandon, ("the caller left",))
    timer.start()
    with pytest.raises(EdgeswarmError, match="the caller left"):
        pending.next(10.0)
    timer.join()


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    settings = WorkerSettings(
        device="nano-1",
        identity_folder=tmp_path,
        listen="127.0.0.1:0",
        log_path=tmp_path / "worker.log",
        command=("/no/such/program",),
    )
    with pytest.raises(EdgeswarmError, match="could not be started"):
        WorkerProcess(settings, on_event=print, on_death=print)


def test_the_worker_computes_with_the_threads_and_the_allocator_that_it_was_given(tmp_path: Path) -> None:
    settings = WorkerSettings(
        device="nano-1", identity_folder=tmp_path, listen="[::1]:0", log_path=tmp_path / "log", slow_down=2.5, threads=3
    )
    assert settings.environment({"A": "b"})["OMP_NUM_THREADS"] == "3"
    assert settings.environment({})["MALLOC_TRIM_THRESHOLD_"] == "2147483648"
    arguments = settings.arguments(9)
    assert tuple(arguments[: arguments.index("--identity")]) == own_module("edgeswarm_agent.worker")
    assert arguments[arguments.index("--slow-down") + 1] == "2.5"
    assert arguments[arguments.index("--events-fd") + 1] == "9"


def test_the_worker_leaves_when_its_daemon_is_gone(start: Start) -> None:
    """The end of its standard input is the sign; the daemon's own end closes it."""
    worker = start("answer")
    worker.process.wait_hello(10.0)
    os.kill(worker.process.process_id, signal.SIGCONT)
    stdin = worker.process._process.stdin
    assert stdin is not None
    stdin.close()
    assert "exit code 0" in worker.deaths.get(timeout=10.0).message
