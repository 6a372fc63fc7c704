"""A worker that waits for the next job: a real daemon in this process, stand-in workers as real processes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import psutil
import pytest

from edgeswarm_agent import service
from edgeswarm_agent.telemetry.hardware_now import HardwareNow
from edgeswarm_agent.telemetry.memory import Memory

from .called_agent import Agent, StartAgent, Watch
from .processes import exists, wait_until
from .stand_in_worker import PORT


def workers_of(agent: Agent) -> list[int]:
    """The workers that it has started, in their order, as its log says."""
    return [int(line.removeprefix("started worker ")) for line in agent.said if line.startswith("started worker ")]


def test_the_next_job_gets_the_worker_that_waits(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    assert workers_of(agent) == [], "none before there was a job"
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    assert exists(waiting)
    assert agent.describe().busy_with_job == ""
    agent.reserve("digits-2")
    watch = Watch(agent, "digits-2")
    assert watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id == waiting
    agent.release("digits-2")
    assert not exists(waiting), "no job gets another one's worker"
    assert len(workers_of(agent)) == 3


def test_a_worker_waits_only_so_long(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=0.3)
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    wait_until(lambda: not exists(waiting))
    wait_until(lambda: f"ended worker {waiting}: no job came" in agent.said)
    agent.reserve("digits-2")
    assert len(workers_of(agent)) == 3


def test_one_that_waits_for_ever_keeps_no_lease_from_ending(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=1e11)
    agent.reserve()
    agent.release()
    agent.reserve("digits-2", lease_seconds=0.3)
    watch = Watch(agent, "digits-2")
    watch.next("heartbeat")
    watch.call.cancel()  # its coordinator is gone
    wait_until(lambda: agent.describe().busy_with_job == "")


def test_a_job_keeps_the_worker_that_waited_for_it(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    agent.reserve("digits-2")
    device = agent.daemon._device
    assert device._ready_until is None, "its time to wait is over"
    with device._change:
        device._end_ready_worker()  # as the thread that looks after leases may, whatever it saw before
    assert exists(waiting)
    assert workers_of(agent)[-1] == waiting


def test_a_waiting_worker_that_dies_is_replaced_by_the_next_job(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    os.kill(waiting, signal.SIGKILL)
    wait_until(lambda: not exists(waiting))
    wait_until(lambda: any("SIGKILL" in line or "killed" in line for line in agent.said))
    agent.reserve("digits-2")
    watch = Watch(agent, "digits-2")
    assert watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id != waiting


def test_what_a_waiting_worker_holds_is_free_for_the_job(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    monkeypatch.setattr(service, "read_training_memory", lambda _: Memory(total=1 << 33, available=1 << 32))
    alone = agent.describe().memory_budget_bytes
    agent.reserve()
    assert agent.describe().memory_budget_bytes == alone
    agent.release()
    assert alone < agent.describe().memory_budget_bytes < alone + (1 << 30)


def test_a_worker_that_waited_goes_where_the_device_is_another_one_by_then(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    usual = HardwareNow.read
    monkeypatch.setattr(HardwareNow, "read", lambda now: replace(usual(now), threads=7))
    agent.reserve("digits-2")
    *_, new = workers_of(agent)
    assert new != waiting
    assert not exists(waiting)
    command = psutil.Process(new).cmdline()
    assert command[command.index("--threads") + 1] == "7"
    agent.reserve("digits-2", bundle="0" * 64)
    assert workers_of(agent)[-1] == new, "the job's own worker stays"


def test_a_stopped_agent_leaves_no_worker(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60.0)
    agent.reserve()
    agent.release()
    _, waiting = workers_of(agent)
    agent.daemon.stop()
    assert not exists(waiting)
