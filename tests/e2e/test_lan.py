"""edgeswarm on a LAN, typed as a user types it: hosts with addresses of their own, default ports, found by real mDNS.

Needs root, for a LAN of network namespaces (see lan_of_namespaces.py); skipped elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeswarm.errors import ExitCode

from .commands import EDGESWARM, EDGESWARM_AGENT, IDLE_SECONDS, Ended, RunningCommand, living, wait_until
from .faulty_job import ENDLESS, ROUNDS_PER_EPOCH, FaultyJob, write_plan
from .lan_of_namespaces import Lan, why_not

pytestmark = [pytest.mark.e2e, pytest.mark.root]

HUB = "hub"  # where the operator sits
DEVICES = ("a", "b", "c")
WITH_REPLICAS = ({"a": 4}, {"b": 1, "c": 3})
CONTROL_PORT, WORKER_PORT = 7600, 7601
# By design 5, the end of the command included 6. The rest is for a busy machine.
NOTICED_SECONDS = 12.0
# A cut-off device sees its unanswered heartbeats after 5 s or its keepalive after 15 s; then its lease of 2 s runs.
FREES_ITSELF_SECONDS = 20.0
_START_SECONDS = 60.0

INSECURE_CALL = """
import socket, sys, grpc
for target in sys.argv[1:]:
    host, port = target.split(":")
    socket.create_connection((host, int(port)), timeout=3).close()
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/edgeswarm.wire.v1.Agent/Describe")
        try:
            call(b"", timeout=3, wait_for_ready=False)
        except grpc.RpcError as error:
            print(target, error.code().name)
        else:
            sys.exit(f"{target} answered without TLS")
"""


class Office:
    """A LAN with a cluster on it: the operator's hub and three devices, each with a home folder of its own."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self.lan = lan
        self.folder = folder
        self.commands: list[RunningCommand] = []
        self.agents: dict[str, psutil.Process] = {}

    def environment(self, host: str) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("EDGESWARM_")}
        return {**plain, "EDGESWARM_HOME": str(self.folder / host), "OMP_NUM_THREADS": "1"}

    def type(self, host: str, *arguments: str | Path) -> RunningCommand:
        """A command line that somebody types on this host."""
        command = RunningCommand(
            self.lan.on(host, *arguments),
            environment=self.environment(host),
            temporary=self.folder / f"temporary-{len(self.commands)}",
        )
        self.commands.append(command)
        return command

    def edgeswarm(self, *arguments: str | Path) -> RunningCommand:
        return self.type(HUB, EDGESWARM, *arguments)

    def done(self, command: RunningCommand) -> Ended:
        ended = command.end()
        assert ended.code == ExitCode.DONE, ended.said
        return ended

    def join_all(self) -> None:
        """`init`, `token create` and, on each device, the very command that this prints."""
        self.done(self.edgeswarm("init"))
        printed = self.folder / "token.json"
        create = (EDGESWARM, "token", "create", "--json", "--uses", str(len(DEVICES)))
        waiting = self.lan.start(HUB, *create, environment=self.environment(HUB), log=printed)
        wait_until(lambda: "\n}\n" in self.log(printed), seconds=_START_SECONDS, what="the token is printed")
        text = self.log(printed)
        program, *arguments = json.loads(text[text.index("{\n") : text.index("\n}\n") + 3])["command"].split()
        assert program == "edgeswarm-agent"
        assert arguments[:2] == ["join", self.lan.address(HUB)], "the address of the hub on this LAN, default port"
        for joining in [self.type(name, EDGESWARM_AGENT, *arguments, "--name", name) for name in DEVICES]:
            self.done(joining)
        assert waiting.wait(_START_SECONDS) == ExitCode.DONE, self.log(printed)

    def run_agents(self) -> None:
        for name in DEVICES:
            started = self.lan.start(
                name,
                EDGESWARM_AGENT,
                "run",
                "--ready-worker",
                "0",
                environment=self.environment(name),
                log=self.agent_log(name),
            )
            self.agents[name] = psutil.Process(started.pid)
        for name in DEVICES:
            wait_until(
                lambda name=name: "listens on" in self.log(self.agent_log(name)),  # type: ignore[misc]
                seconds=_START_SECONDS,
                what=f"the agent {name} runs",
            )

    def agent_log(self, name: str) -> Path:
        return self.folder / f"agent-{name}.log"

    @staticmethod
    def log(path: Path) -> str:
        return path.read_text() if path.exists() else ""

    def devices(self) -> dict[str, dict[str, Any]]:
        """What `edgeswarm devices` lists, by name."""
        listed = json.loads(self.done(self.edgeswarm("devices", "--json")).output)["devices"]
        return {device["node_id"].rpartition("-")[0]: device for device in listed}

    def wait_without_worker(self, *names: str, seconds: float = IDLE_SECONDS) -> None:
        for name in names:
            children = self.agents[name].children
            wait_until(lambda: not living(children()), seconds=seconds, what=f"the worker of {name} has ended")  # noqa: B023


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Lan((HUB, *DEVICES)) as lan:
        office = Office(lan, tmp_path_factory.mktemp("office"))
        try:
            office.join_all()
            office.run_agents()
            yield office
        finally:
            for command in office.commands:
                command.kill()


def test_devices_finds_them_at_their_lan_addresses_by_mdns(office: Office) -> None:
    found = office.devices()
    assert {name: device["address"] for name, device in found.items()} == {
        name: f"{office.lan.address(name)}:{CONTROL_PORT}" for name in DEVICES
    }
    assert all(not device["busy_with_job"] for device in found.values())


def test_a_training_runs_over_the_lan(office: Office) -> None:
    folder = office.folder / "training"
    path = FaultyJob(epochs=2).write(folder)
    plan = write_plan(folder, WITH_REPLICAS)
    trained = office.done(office.edgeswarm("train", path, "--plan", plan, "--output", folder / "result", "--json"))
    assert len(json.loads(trained.output)["metrics"]["rounds"]) == 2 * ROUNDS_PER_EPOCH
    assert (folder / "result" / "model.safetensors").is_file()
    assert "warning" not in trained.said.lower()


def test_nothing_answers_without_tls_and_a_link_that_is_cut_ends_the_training(office: Office) -> None:
    folder = office.folder / "endless"
    path = FaultyJob(epochs=ENDLESS).write(folder)
    plan = write_plan(folder, WITH_REPLICAS)
    training = office.edgeswarm("train", path, "--plan", plan, "--output", folder / "result")
    training.wait_for("round 1/")

    targets = [f"{office.lan.address(name)}:{port}" for name in DEVICES for port in (CONTROL_PORT, WORKER_PORT)]
    answers = office.done(office.type(HUB, sys.executable, "-c", INSECURE_CALL, *targets)).output.splitlines()
    assert answers == [f"{target} UNAVAILABLE" for target in targets]

    office.lan.cut("c")
    try:
        ended = training.end(NOTICED_SECONDS)
        assert ended.code == ExitCode.ERROR
        assert ended.message.startswith("error: The device c-")
        assert " was lost: " in ended.message
        assert not (folder / "result").exists()
        office.wait_without_worker("a", "b")
        office.wait_without_worker("c", seconds=FREES_ITSELF_SECONDS)
    finally:
        office.lan.mend("c")
    found = office.devices()
    assert {name: device["busy_with_job"] for name, device in found.items()} == dict.fromkeys(DEVICES, "")
