"""The throw-away cluster: real agents that joined with a real token, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import node_id_of
from edgeswarm_coordinator.demo import keeper
from edgeswarm_coordinator.demo.cluster import AgentSpec, ThrowawayCluster

pytestmark = pytest.mark.e2e

WAIT_SECONDS = 20.0


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet collected by its parent doesn't."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "a process of the cluster lives on"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster([AgentSpec("nano-1"), AgentSpec("nano-2", slow_down=1.5)], mdns=False) as running:
        yield running


def test_every_agent_joined_and_answers_at_its_address(cluster: ThrowawayCluster) -> None:
    operator = Identity.load(cluster.folders.operator_dir, role=Role.OPERATOR)
    assert cluster.names == ("nano-1", "nano-2")
    for name, address in zip(cluster.names, cluster.addresses, strict=True):
        assert node_id_of(address, identity=operator) == cluster.node_id(name)
        assert cluster.node_id(name).startswith(f"{name}-")


def test_everything_is_in_its_folder(cluster: ThrowawayCluster) -> None:
    assert cluster.operator_home.is_relative_to(cluster.folder)
    assert cluster.home("nano-1").is_relative_to(cluster.folder)
    assert cluster.environment["EDGESWARM_HOME"] == str(cluster.operator_home)
    assert "joined as" in cluster.log("nano-1")


def test_an_agent_that_was_killed_comes_back_as_the_same(cluster: ThrowawayCluster) -> None:
    before = (cluster.pid("nano-2"), cluster.address("nano-2"))
    cluster.kill("nano-2")
    assert not is_alive(before[0])
    with pytest.raises(ValueError, match="not running"):
        cluster.pid("nano-2")
    cluster.restart("nano-2")
    operator = Identity.load(cluster.folders.operator_dir, role=Role.OPERATOR)
    assert cluster.pid("nano-2") != before[0]
    assert cluster.address("nano-2") == before[1]
    assert node_id_of(before[1], identity=operator) == cluster.node_id("nano-2")


def test_stop_ends_the_agents_even_a_frozen_one_and_removes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 0.5)  # a frozen process uses all of it up
    cluster = ThrowawayCluster(["nano-1", "nano-2"], mdns=False)
    cluster.start()
    pids = [cluster.pid(name) for name in cluster.names]
    os.kill(pids[1], signal.SIGSTOP)
    cluster.stop()
    assert not any(map(is_alive, pids))
    assert not cluster.folder.exists()
    cluster.stop()


def test_a_folder_of_the_callers_is_kept(tmp_path: Path) -> None:
    with ThrowawayCluster(["nano-1"], folder=tmp_path / "mine", mdns=False) as cluster:
        pid = cluster.pid("nano-1")
    assert not is_alive(pid)
    assert "joined as" in cluster.log("nano-1")


def test_an_agent_that_does_not_start_is_named_with_what_it_said() -> None:
    cluster = ThrowawayCluster([AgentSpec("nano-1"), AgentSpec("nano-2", memory="a lot")], mdns=False)
    with pytest.raises(EdgeswarmError) as caught:
        cluster.start()
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE
    assert "nano-2" in caught.value.message
    assert "a lot" in caught.value.detail
    assert not cluster.folder.exists()
    with pytest.raises(ValueError, match="not running"):
        cluster.pid("nano-1")


@pytest.mark.parametrize("names", [[], ["nano-1", "nano-1"]])
def test_names_are_needed_and_differ(names: list[str]) -> None:
    with pytest.raises(ValueError, match="name"):
        ThrowawayCluster(names)


PROGRAM = """
import time
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

cluster = ThrowawayCluster(["nano-1"], mdns=False)
cluster.start()
print(cluster.pid("nano-1"), cluster.folder, flush=True)
time.sleep(60)
"""


def test_the_agents_end_with_the_program_that_was_killed() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    pid, folder = program.stdout.readline().split()
    program.kill()
    program.communicate()
    wait_until_gone(int(pid))
    deadline = time.monotonic() + WAIT_SECONDS
    while Path(folder).exists():
        assert time.monotonic() < deadline, "the folder is left"
        time.sleep(0.02)


def test_the_keeper_knows_who_is_left() -> None:
    assert keeper.read_processes(["+1\n", "+22\n", "-1\n", "+3\n", "-4\n"]) == {22, 3}
