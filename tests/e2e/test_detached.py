"""Trainings without their terminal: started so, hung up on, looked at and stopped from another one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.run_store import RunStore
from tests.terminals import Terminal

from .commands import EDGESWARM, Ended, RunningCommand, living, wait_until, wait_until_idle
from .faulty_job import ENDLESS, FaultyJob, write_plan

pytestmark = pytest.mark.e2e

NAMES = ("a", "b")
ENDLESS_JOB = FaultyJob(epochs=ENDLESS)
SLOW_DATASET = FaultyJob(dataset="print('sleeping', file=sys.stderr, flush=True); time.sleep(600)")


class Terminals:
    """Where somebody types commands for the cluster, in one terminal after the other."""

    def __init__(self, cluster: ThrowawayCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.output = folder / "result"
        self._commands: list[RunningCommand] = []

    def start(self, *arguments: str | Path) -> RunningCommand:
        command = RunningCommand(
            [EDGESWARM, *arguments], environment=self.cluster.environment, temporary=self.folder / "t"
        )
        self._commands.append(command)
        return command

    def run(self, *arguments: str | Path) -> Ended:
        return self.start(*arguments).end()

    def training(self, job: FaultyJob, *arguments: str | Path) -> list[str | Path]:
        """The words of `train` over two devices."""
        path = job.write(self.folder / "job")
        plan = write_plan(self.folder, ({"a": 4}, {"b": 4}))
        peers = [part for address in self.cluster.addresses for part in ("--peer", address)]
        return ["train", path, "--plan", plan, "--output", self.output, "--no-mdns", *peers, *arguments]

    def detached(self) -> str:
        """The id of an endless training in the background."""
        ended = self.run(*self.training(ENDLESS_JOB, "--detach"))
        assert ended.code == 0, ended.said
        return ended.output.strip()

    def status(self, job: str) -> dict[str, Any]:
        ended = self.run("status", job, "--json")
        assert ended.code == 0, ended.said
        document: dict[str, Any] = json.loads(ended.output)
        return document

    def close(self) -> None:
        for command in self._commands:
            command.kill()
        for run in RunStore.of(self.cluster.folders).running():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(run.record.process.pid).kill()


@pytest.fixture
def terminals(cluster: ThrowawayCluster, tmp_path: Path) -> Iterator[Terminals]:
    terminals = Terminals(cluster, tmp_path)
    yield terminals
    terminals.close()
    wait_until_idle(cluster, *NAMES)


def test_a_training_in_the_background_is_followed_and_stopped_from_another_terminal(terminals: Terminals) -> None:
    command = terminals.start(*terminals.training(ENDLESS_JOB, "--detach"))
    ended = command.end()
    assert ended.code == 0, ended.said
    job = ended.output.strip()
    assert "round 1/" in ended.said, "until the first round is done, progress is shown"
    for hint in (f"edgeswarm status {job}", f"edgeswarm logs {job} --follow", f"edgeswarm stop {job}"):
        assert hint in ended.said

    known = terminals.status(job)
    process = psutil.Process(known["process"]["pid"])
    assert process.pid != command.pid
    assert process.terminal() is None
    assert os.getsid(process.pid) == process.pid, "in a session of its own"
    wait_until(lambda: terminals.status(job)["detached"], seconds=10.0, what="the record says that it is detached")
    known = terminals.status(job)
    assert (known["state"], known["devices"]) == ("running", [terminals.cluster.node_id(name) for name in NAMES])
    assert known["round"] >= 1

    follower = terminals.start("logs", job, "--follow")
    stopped = terminals.run("stop", job[:-2])
    assert stopped.code == 0, stopped.said
    assert f"{job} has stopped; its devices are free" in stopped.said
    wait_until_idle(terminals.cluster, *NAMES)
    followed = follower.end()
    assert followed.code == 0
    assert "round 1/" in followed.output
    assert "Interrupted" in followed.output, "an error at the end is in the log"
    assert "\x1b" not in followed.output

    known = terminals.status(job)
    assert (known["state"], known["exit_code"], known["error"]["code"]) == ("stopped", 130, "interrupted")
    again = terminals.run("stop", job)
    assert again.code == ExitCode.ERROR
    assert "has ended already (stopped)" in again.message


@pytest.mark.soak
def test_with_json_the_announcement_is_one_document(terminals: Terminals) -> None:
    ended = terminals.run(*terminals.training(FaultyJob(epochs=400), "--detach", "--json"))
    assert ended.code == 0, ended.said
    told = json.loads(ended.output)
    assert told["folder"] == str(terminals.output)
    followed = terminals.run("logs", told["job_id"], "--follow", "--all")
    assert terminals.status(told["job_id"])["state"] == "done"
    assert (terminals.output / "model.safetensors").exists()
    assert followed.output.splitlines()[-1] == str(terminals.output)
    assert Path(told["log"]).read_text() == followed.output


@pytest.mark.soak
def test_what_fails_before_the_first_round_fails_in_the_foreground(terminals: Terminals) -> None:
    ended = terminals.run(*terminals.training(FaultyJob(name="jop"), "--detach"))
    assert ended.code == ExitCode.ERROR
    assert "has no `job`" in ended.message
    assert ended.output == ""
    with_json = terminals.run(*terminals.training(FaultyJob(name="jop"), "--detach", "--json"))
    assert with_json.code == ExitCode.ERROR
    assert json.loads(with_json.output)["error"]["code"] == "job-file"
    assert RunStore.of(terminals.cluster.folders).running() == []


def test_ctrl_c_before_it_is_detached_stops_it(terminals: Terminals) -> None:
    command = terminals.start(*terminals.training(SLOW_DATASET, "--detach"))
    command.wait_for("sleeping")
    (background, *_) = psutil.Process(command.pid).children()
    command.signal(signal.SIGINT)
    ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED
    assert "Interrupted" in ended.message
    assert living([background]) == []
    wait_until_idle(terminals.cluster, *NAMES)


def test_a_background_that_is_killed_before_its_first_round_is_told(terminals: Terminals) -> None:
    command = terminals.start(*terminals.training(SLOW_DATASET, "--detach"))
    command.wait_for("sleeping")
    (background, *_) = psutil.Process(command.pid).children()
    background.kill()
    ended = command.end()
    assert ended.code == ExitCode.ERROR
    assert "ended by SIGKILL" in ended.message


@pytest.mark.soak
def test_stop_now_kills_it_and_status_says_that_it_was_lost(terminals: Terminals) -> None:
    job = terminals.detached()
    stopped = terminals.run("stop", job, "--now")
    assert stopped.code == 0, stopped.said
    wait_until_idle(terminals.cluster, *NAMES)
    assert terminals.status(job)["state"] == "lost"
    told = terminals.run("status", job).output
    assert "it ended without a word" in told
    assert "--resume" in told


def test_a_terminal_that_hangs_up_leaves_the_training_alone(terminals: Terminals) -> None:
    environment = {**terminals.cluster.environment, "OMP_NUM_THREADS": "1"}
    terminal = Terminal([EDGESWARM, *terminals.training(ENDLESS_JOB)], environment=environment)
    try:
        terminal.wait_for("round 2")
        (run,) = RunStore.of(terminals.cluster.folders).running()
        job = run.record.job_id
        terminal.hang_up()
        wait_until(lambda: terminals.status(job)["detached"], seconds=10.0, what="the record says that it is detached")
        before = terminals.status(job)["round"]
        wait_until(lambda: terminals.status(job)["round"] > before, seconds=10.0, what="rounds go on")
        assert terminal.process.poll() is None
        assert "the terminal hung up" in run.log_path.read_text()
        assert terminals.run("stop").code == 0
        assert terminal.process.wait(10.0) == ExitCode.INTERRUPTED
        log = run.log_path.read_text()
        assert "error: Interrupted" in log
        assert "\x1b" not in log
        assert "Traceback" not in log
    finally:
        terminal.close()


@pytest.mark.soak
def test_a_file_has_its_document_though_the_terminal_hung_up(terminals: Terminals, tmp_path: Path) -> None:
    document = tmp_path / "result.json"
    arguments = [EDGESWARM, *terminals.training(FaultyJob(), "--json")]
    terminal = Terminal(
        ["/bin/sh", "-c", 'out="$1"; shift; exec "$@" > "$out"', "sh", document, *arguments],
        environment={**terminals.cluster.environment, "OMP_NUM_THREADS": "1"},
    )
    try:
        terminal.wait_for("load job")
        terminal.hang_up()
        assert terminal.process.wait(120.0) == 0
        assert Path(json.loads(document.read_text())["folder"]).is_dir()
    finally:
        terminal.close()


@pytest.mark.soak
def test_a_terminal_that_hangs_up_before_the_first_round_leaves_a_detached_one_alone(terminals: Terminals) -> None:
    arguments = terminals.training(ENDLESS_JOB, "--detach")
    environment = {**terminals.cluster.environment, "OMP_NUM_THREADS": "1"}
    terminal = Terminal([EDGESWARM, *arguments], environment=environment)
    try:
        terminal.wait_for("load job")
        terminal.hang_up()
        terminal.process.wait(60.0)
        (run,) = RunStore.of(terminals.cluster.folders).running()
        job = run.record.job_id
        wait_until(lambda: terminals.status(job)["round"] > 0, seconds=20.0, what="a round is in the record")
        assert terminals.status(job)["detached"] is True
        assert terminals.run("stop", job).code == 0
    finally:
        terminal.close()


@pytest.mark.soak
def test_a_training_in_the_foreground_is_in_the_log_too(terminals: Terminals) -> None:
    command = terminals.start(*terminals.training(ENDLESS_JOB))
    command.wait_for("round 1/")
    (run,) = RunStore.of(terminals.cluster.folders).running()
    wait_until(lambda: terminals.status(run.record.job_id)["round"] > 0, seconds=10.0, what="a round is in the record")
    assert terminals.status(run.record.job_id)["detached"] is False
    command.signal(signal.SIGINT)
    ended = command.end()
    log = run.log_path.read_text().splitlines()
    assert "".join(ended.message) in "\n".join(log)
    assert [line for line in log if line.startswith("  prepare workers")]
    assert terminals.status(run.record.job_id)["state"] == "stopped"
