"""`edgeswarm devices` with no agents, and with a real one."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.demo.cluster import LOOPBACK, AgentSpec, ThrowawayCluster
from tests.terminals import CTRL_C, Terminal

from .conftest import Invoke


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster([AgentSpec("nano-1", slow_down=1.5)], mdns=False) as running:
        yield running


@pytest.fixture
def of_the_cluster(cluster: ThrowawayCluster, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Invoke:
    """The command line of the cluster's operator."""
    monkeypatch.setenv("EDGESWARM_HOME", str(cluster.operator_home))
    return invoke


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{probe.getsockname()[1]}"


def test_without_a_cluster_it_says_so(invoke: Invoke) -> None:
    result = invoke("devices", "--no-mdns")
    assert result.exit_code == ExitCode.ERROR
    assert "edgeswarm init" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-mdns"],
        ["--no-mdns", "--peer", free_address()],
        ["--interface", LOOPBACK, "--wait", "0.2"],
    ],
)
def test_no_agents_is_exit_code_3(arguments: list[str], home: Path, invoke: Invoke) -> None:
    assert invoke("init").exit_code == ExitCode.DONE
    result = invoke("devices", *arguments)
    assert result.exit_code == ExitCode.NOTHING_FOUND
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 1
    assert "remedy: " in result.stderr
    document = json.loads(invoke("devices", "--json", *arguments).stdout)
    assert document["error"]["code"] == "no-devices"


def test_an_agent_is_listed(cluster: ThrowawayCluster, of_the_cluster: Invoke) -> None:
    result = of_the_cluster("devices", "--no-mdns", "--peer", cluster.address("nano-1"))
    assert result.exit_code == ExitCode.DONE, result.stderr
    for text in (cluster.node_id("nano-1"), cluster.address("nano-1"), "1.5 x slower", "idle"):
        assert text in result.stdout, text


def test_json_is_one_document(cluster: ThrowawayCluster, of_the_cluster: Invoke) -> None:
    result = of_the_cluster("devices", "--json", "--no-mdns", "--peer", cluster.address("nano-1"))
    (device,) = json.loads(result.stdout)["devices"]
    assert (device["node_id"], device["slow_down"]) == (cluster.node_id("nano-1"), 1.5)
    assert device["memory_budget_bytes"] > 0


@pytest.mark.thorough
def test_watching_goes_on_until_ctrl_c(cluster: ThrowawayCluster) -> None:
    arguments = ["devices", "--watch", "--no-mdns", "--peer", cluster.address("nano-1")]
    program = "from edgeswarm_coordinator.cli import main; main()"
    watching = Terminal([sys.executable, "-c", program, *arguments], environment=cluster.environment, columns=200)
    try:
        watching.wait_for("idle", times=2)
        watching.press(CTRL_C)
        assert "error" not in watching.end()
        assert watching.process.returncode == ExitCode.DONE
    finally:
        watching.close()


def test_a_device_that_is_not_there_is_named(cluster: ThrowawayCluster, of_the_cluster: Invoke) -> None:
    address = cluster.address("nano-1")
    result = of_the_cluster("devices", "--no-mdns", "--peer", address, "--device", "nano-7")
    assert result.exit_code == ExitCode.NOTHING_FOUND
    assert "nano-7" in result.stderr
