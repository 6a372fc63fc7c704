"""What goes wrong while a job runs: one message, the right exit code, devices free again, nothing left behind.

Each test breaks a real cluster of three agents and leaves it whole; the job after it finds it so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .commands import RunningCommand, busy_job, living, wait_until, wait_until_idle, worker_of
from .desk import ALONE, ENDLESS_JOB, FIRST_ROUND, TWO_STAGES, WITH_REPLICAS, Desk, failed
from .faulty_job import FaultyJob, Groups

pytestmark = pytest.mark.e2e

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    """Agents of this module's own: it kills them."""
    with ThrowawayCluster(NAMES, mdns=False) as cluster:
        yield cluster


@pytest.fixture
def desk(cluster: ThrowawayCluster, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(cluster, tmp_path)
    yield desk
    for command in desk.commands:
        command.kill()
    wait_until_idle(cluster, *NAMES)


# --- devices that fail ------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_in_mid_round_is_named_with_the_signal(desk: Desk) -> None:
    command = desk.in_mid_round(WITH_REPLICAS)
    worker = worker_of(desk.cluster, "c")
    worker.kill()
    message = failed(desk, command)
    assert message.startswith(f"error: The worker on {desk.cluster.node_id('c')} (process {worker.pid}) died:")
    assert "SIGKILL" in message
    wait_until_idle(desk.cluster, *NAMES)


def test_a_worker_that_hangs_in_mid_round_is_named_with_where_it_stood(desk: Desk) -> None:
    """Its heart goes on beating, and the others wait for it: after ten seconds its agent ends it."""
    command = desk.train(
        FaultyJob(top="calls = []", loss="calls.append(1); time.sleep(3600 if len(calls) > 20 else 0)", epochs=9)
    )
    message = failed(desk, command)
    assert f"The worker on {desk.cluster.node_id('b')} (process " in message
    assert "it hung and the agent ended it" in message
    assert "forward of micro-batch" in message
    wait_until_idle(desk.cluster, *NAMES)


def test_an_agent_that_vanishes_is_named_and_its_worker_ends_too(desk: Desk) -> None:
    command = desk.in_mid_round(WITH_REPLICAS)
    worker = worker_of(desk.cluster, "b")
    desk.cluster.kill("b")
    try:
        message = failed(desk, command)
        assert message.startswith(f"error: The device {desk.cluster.node_id('b')} was lost")
        wait_until_idle(desk.cluster, "a", "c")
        wait_until(lambda: not living([worker]), seconds=5.0, what="the worker of b has ended")
    finally:
        desk.cluster.restart("b")


def test_an_agent_that_is_stopped_says_so(desk: Desk) -> None:
    command = desk.in_mid_round(WITH_REPLICAS)
    desk.cluster.restart("b")  # in order, which ends it first
    message = failed(desk, command)
    assert message.startswith(f"error: The agent on {desk.cluster.node_id('b')} was stopped.")
    wait_until_idle(desk.cluster, *NAMES)


def test_a_device_that_freezes_is_named_and_frees_itself_when_it_thaws(desk: Desk) -> None:
    command = desk.in_mid_round()
    with frozen(desk.cluster.pid("b"), worker_of(desk.cluster, "b").pid):
        message = failed(desk, command)
        assert message.startswith(f"error: The device {desk.cluster.node_id('b')} was lost")
        wait_until_idle(desk.cluster, "a")
    wait_until_idle(desk.cluster, "b")


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# --- the coordinator --------------------------------------------------------------------------------------------------

SLEEP = "print('sleeping', file=sys.stderr, flush=True); time.sleep(600)"
SLEEP_IN_THE_DATA_SERVICE = "if IN_THE_DATA_SERVICE: " + SLEEP
SLEEP_ON_A_DEVICE = "ON_A_DEVICE and time.sleep(600)"
SLOW_STATE = """
class SlowState(collections.defaultdict):
    def get(self, key, default=None):
        ON_A_DEVICE and time.sleep(600)
        return super().get(key, default)
"""


@pytest.mark.parametrize(
    ("job", "groups", "when"),
    [
        pytest.param(FaultyJob(), ALONE, "load job", id="export"),
        pytest.param(FaultyJob(model=SLEEP), ALONE, "sleeping", marks=pytest.mark.soak, id="building-the-model"),
        pytest.param(FaultyJob(dataset=SLEEP), ALONE, "sleeping", marks=pytest.mark.soak, id="opening-the-dataset"),
        pytest.param(FaultyJob(top=SLEEP_ON_A_DEVICE), ALONE, "start workers", id="preparing"),
        pytest.param(ENDLESS_JOB, TWO_STAGES, FIRST_ROUND, id="rounds"),
        pytest.param(
            FaultyJob(top=SLOW_STATE, optimizer="made.state = SlowState(dict)"),
            ALONE,
            "  train ",
            marks=pytest.mark.soak,
            id="gathering",
        ),
    ],
)
def test_ctrl_c_at_any_time_frees_the_devices(desk: Desk, job: FaultyJob, groups: Groups, when: str) -> None:
    command = desk.train(job, groups=groups)
    command.wait_for(when)
    interrupt(desk, command)


def test_ctrl_c_before_the_command_has_begun() -> None:
    script = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from edgeswarm_coordinator.cli import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (ExitCode.INTERRUPTED, "error: interrupted\n")


def test_ctrl_c_while_devices_are_searched_for(desk: Desk) -> None:
    command = desk.train(FaultyJob(), "--wait", "600", "--interface", "127.0.0.1", groups=None, mdns=True)
    command.wait_for("load job")
    interrupt(desk, command)


def test_ctrl_c_while_layers_are_timed(desk: Desk) -> None:
    command = desk.train(FaultyJob(), "--fresh-profiles", "--device", "c", groups=None)
    command.wait_for("measuring 1/")
    interrupt(desk, command)


def interrupt(desk: Desk, command: RunningCommand) -> None:
    command.signal(signal.SIGINT)
    assert "Interrupted" in failed(desk, command, code=ExitCode.INTERRUPTED)
    wait_until_idle(desk.cluster, *NAMES)


def test_a_second_job_is_refused_and_the_first_goes_on_until_its_coordinator_is_killed(desk: Desk) -> None:
    first = desk.in_mid_round()
    job = busy_job(desk.cluster, "a")
    elsewhere = desk.folder / "elsewhere"
    refused = desk.train(FaultyJob(), "--output", elsewhere).end()
    assert refused.code == ExitCode.ERROR
    assert f"is busy with job {job}" in refused.message
    assert list(desk.folder.glob("elsewhere*")) == []

    listed = desk.start("devices", "--json", "--no-mdns").end()
    busy = {device["node_id"]: device["busy_with_job"] for device in json.loads(listed.output)["devices"]}
    assert busy == {desk.cluster.node_id("a"): job, desk.cluster.node_id("b"): job, desk.cluster.node_id("c"): ""}

    service = first.children
    assert len(service) == 1
    workers = [worker_of(desk.cluster, name) for name in ("a", "b")]
    first.signal(signal.SIGKILL)
    assert first.end().code == -signal.SIGKILL
    wait_until_idle(desk.cluster, *NAMES)
    assert living(workers) == []
    wait_until(lambda: not living(service), seconds=5.0, what="the data service has ended")


def test_of_two_that_begin_at_the_same_moment_one_trains(desk: Desk) -> None:
    commands = [
        desk.train(ENDLESS_JOB, "--output", desk.folder / f"of-{number}", groups=WITH_REPLICAS) for number in range(2)
    ]
    processes = [psutil.Process(command.pid) for command in commands]
    wait_until(lambda: len(living(processes)) < 2, seconds=60.0, what="one of the two has ended")
    alive = living(processes)
    (loser,) = (command for command in commands if command.pid not in {process.pid for process in alive})
    assert "is busy with job" in loser.end().message
    (winner,) = (command for command in commands if command is not loser)
    winner.wait_for(FIRST_ROUND)
    winner.signal(signal.SIGINT)
    assert winner.end().code == ExitCode.INTERRUPTED
    wait_until_idle(desk.cluster, *NAMES)


def test_ctrl_c_twice_leaves_at_once_and_the_devices_free_themselves(desk: Desk) -> None:
    command = desk.train(FaultyJob(dataset=SLEEP_IN_THE_DATA_SERVICE), groups=TWO_STAGES)
    wait_until(lambda: "sleeping" in data_service_log(command), seconds=60.0, what="the data service opens the dataset")
    service = command.children
    assert len(service) == 1
    with frozen(desk.cluster.pid("b")):  # freeing it in order takes seconds
        command.signal(signal.SIGINT)
        command.wait_for("stopping")
        command.signal(signal.SIGINT)
        assert command.end(2.0).code == ExitCode.INTERRUPTED
        wait_until_idle(desk.cluster, "a")
    wait_until_idle(desk.cluster, "b")
    wait_until(lambda: not living(service), seconds=5.0, what="the data service has ended")


def data_service_log(command: RunningCommand) -> str:
    return "".join(path.read_text() for path in command.temporary.glob("edgeswarm-*/data-service.log"))


def test_a_data_service_that_is_killed_is_told(desk: Desk) -> None:
    command = desk.in_mid_round(ALONE)
    (service,) = command.children
    service.kill()
    assert "The data service ended by SIGKILL" in failed(desk, command)
    wait_until_idle(desk.cluster, *NAMES)


def test_after_all_of_this_a_job_runs_to_its_end(desk: Desk) -> None:
    command = desk.train(FaultyJob(), groups=WITH_REPLICAS)
    ended = command.end()
    assert ended.code == ExitCode.DONE, ended.said
    assert {path.name for path in desk.output.iterdir()} == {
        "model.safetensors", "optimizer.safetensors", "optimizer.json", "metrics.json", "plan.json"
    }  # fmt: skip
    assert list(command.temporary.glob("edgeswarm*")) == []
