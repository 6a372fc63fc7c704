"""Devices that are not as the others: another version, a PyTorch without an operation, little memory, a cloned disk, a port
that is taken. Each is a real agent, started so; afterwards it is as before, and the next job runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ExitCode
from edgeswarm.plan import Plan
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.version import PROTOCOL_VERSION
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .commands import EDGESWARM, EDGESWARM_AGENT, RunningCommand, wait_until, wait_until_idle
from .desk import TWO_STAGES, Desk, failed
from .faulty_job import FaultyJob

pytestmark = pytest.mark.e2e

NAMES = ("a", "b")
ON_B = ({"b": 4},)

ANOTHER_VERSION = """
import edgeswarm.wire.version

edgeswarm.wire.version.PROTOCOL_VERSION = 99
"""
# What a PyTorch built years ago looks like from outside: the operation isn't there.
WITHOUT_TANH = """
import sys


class TorchWithoutTanh:
    def find_spec(self, name, path=None, target=None):
        if name == "edgeswarm_agent.worker":
            sys.meta_path.remove(self)
            import torch

            original = torch._ops._OpNamespace.__getattr__

            def without(namespace, name):
                if namespace.name == "aten" and name == "tanh":
                    raise AttributeError(name)
                return original(namespace, name)

            torch._ops._OpNamespace.__getattr__ = without
            torch.ops.aten.__dict__.pop("tanh", None)


sys.meta_path.insert(0, TorchWithoutTanh())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    """Agents of this module's own: it ends them and starts them otherwise."""
    with ThrowawayCluster(NAMES, mdns=False) as cluster:
        yield cluster


@pytest.fixture
def desk(cluster: ThrowawayCluster, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(cluster, tmp_path)
    yield desk
    for command in desk.commands:
        command.kill()
    wait_until_idle(cluster, *NAMES)


@contextlib.contextmanager
def another_b(desk: Desk, *options: str, at_start: str = "") -> Iterator[None]:
    """In place of the agent b one with these options. at_start: Python that its interpreters run first."""
    cluster = desk.cluster
    address = cluster.address("b")
    cluster.kill("b")
    site = desk.folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(at_start)
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    agent = start_agent(desk, *options, home=cluster.home("b"), port=address.rpartition(":")[2], PYTHONPATH=path)
    try:
        wait_until(lambda: answers_at(cluster, "b", address), seconds=20.0, what="the agent answers")
        yield
    finally:
        agent.signal(signal.SIGTERM)
        assert agent.end().code == ExitCode.DONE
        cluster.restart("b")


def start_agent(desk: Desk, *options: str, home: Path, port: str, **environment: str) -> RunningCommand:
    agent = RunningCommand(
        [EDGESWARM_AGENT, "run", "--listen", "127.0.0.1", "--no-mdns", "--port", port, *options],
        environment={**desk.cluster.environment, "EDGESWARM_HOME": str(home), **environment},
        temporary=desk.folder / f"temporary-{len(desk.commands)}",
    )
    desk.commands.append(agent)
    return agent


def answers_at(cluster: ThrowawayCluster, name: str, address: str) -> bool:
    """Whether an agent with that one's node id answers there."""
    identity = Identity.load(cluster.folders.operator_dir, role=Role.OPERATOR)
    try:
        AgentLink.open(address, node_id=cluster.node_id(name), identity=identity).close()
    except EdgeswarmError:
        return False
    return True


def test_an_agent_of_another_version_is_named(desk: Desk) -> None:
    node_id = desk.cluster.node_id("b")
    with another_b(desk, "--worker-port", "0", at_start=ANOTHER_VERSION):
        message = failed(desk, desk.train(FaultyJob(), groups=ON_B))
        assert message.startswith(f"error: {node_id} runs edgeswarm")
        assert f"(protocol 99), this machine speaks protocol {PROTOCOL_VERSION}" in message
        assert "Install the same version" in message


def test_a_torch_that_lacks_an_operation_is_named_with_the_device(desk: Desk) -> None:
    node_id = desk.cluster.node_id("b")
    with another_b(desk, "--worker-port", "0", at_start=WITHOUT_TANH):
        message = failed(desk, desk.train(FaultyJob(), groups=TWO_STAGES))
        assert "aten.tanh" in message
        assert node_id in message
        assert "Install a newer PyTorch" in message
        profiled = failed(desk, desk.train(FaultyJob(), "--device", "b", "--fresh-profiles", groups=None))
        assert "aten.tanh" in profiled
        assert node_id in profiled


def test_a_model_that_fits_no_plan_is_told_with_what_is_lacking(desk: Desk) -> None:
    node_id = desk.cluster.node_id("b")
    both = "return nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 6000), nn.Linear(6000, 2000), nn.Linear(2000, 2))"
    with another_b(desk, "--worker-port", "0", "--memory", "400MiB"):
        command = desk.train(FaultyJob(model=both), "--device", "b", groups=None)
        message = failed(desk, command, code=ExitCode.CANNOT_BE_PLACED)
        assert f"the closest would give {node_id} the whole model, which takes" in message
        assert "but it has 400.0 MiB: " in message
        assert "MiB too little" in message
        assert f"on {node_id}; another device" in message


def test_a_device_that_cannot_hold_one_layer_gets_others(desk: Desk) -> None:
    node_id = desk.cluster.node_id("b")
    large = (
        "return nn.Sequential(nn.Linear(4, 1500), nn.Linear(1500, 1500), nn.Linear(1500, 1500), nn.Linear(1500, 300), "
        "nn.Linear(300, 90_000), nn.Linear(90_000, 2))"
    )
    # Hardware of another speed is profiled by itself.
    with another_b(desk, "--worker-port", "0", "--memory", "300MiB", "--slow-down", "1.5"):
        ended = desk.train(FaultyJob(model=large, epochs=1), groups=None).end()
    assert ended.code == ExitCode.DONE, ended.said
    assert f"{node_id}: the layer 4 doesn't fit its 300.0 MiB of memory" in ended.said
    assert "it may get others" in ended.said
    plan = Plan.from_json(json.loads((desk.output / "plan.json").read_text()))
    of_b = [stage for stage in plan.stages if node_id in stage.devices]
    assert [(stage.first_layer, stage.end_layer <= 4) for stage in of_b] == [(0, True)]


def test_two_devices_with_one_identity_are_named_with_both_addresses(desk: Desk) -> None:
    cluster = desk.cluster
    copy = desk.folder / "copy"
    shutil.copytree(cluster.home("b"), copy, symlinks=True, ignore=shutil.ignore_patterns("*.lock", "*.sock"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    clone = start_agent(desk, "--worker-port", "0", home=copy, port=port)
    wait_until(lambda: answers_at(cluster, "b", f"127.0.0.1:{port}"), seconds=20.0, what="the copy answers")
    command = desk.train(FaultyJob(), "--peer", f"127.0.0.1:{port}", groups=ON_B)
    message = failed(desk, command)
    assert message.startswith(f"error: Two devices call themselves {cluster.node_id('b')}:")
    assert cluster.address("b") in message
    assert f"127.0.0.1:{port}" in message
    assert "join it again" in message
    clone.signal(signal.SIGTERM)
    assert clone.end().code == ExitCode.DONE


# --- ports ------------------------------------------------------------------------------------------------------------


def test_an_agent_that_is_started_twice_says_that_its_port_is_taken(desk: Desk) -> None:
    port = desk.cluster.address("a").rpartition(":")[2]
    assert port in failed(desk, start_agent(desk, home=desk.cluster.home("a"), port=port))


def test_a_worker_whose_port_is_taken_says_so(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with another_b(desk, "--worker-port", str(port)):
            message = failed(desk, desk.train(FaultyJob(), groups=ON_B))
            assert f"another program listens on 127.0.0.1:{port}, the worker's port" in message
            assert "--worker-port" in message


def test_a_join_service_whose_port_is_taken_says_so(desk: Desk) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        command = RunningCommand(
            [EDGESWARM, "token", "create", "--join-port", str(port)],
            environment=desk.cluster.environment,
            temporary=desk.folder / "temporary",
        )
        desk.commands.append(command)
        message = failed(desk, command)
        assert str(port) in message
        assert "--join-port" in message


def test_after_all_of_this_a_job_runs_to_its_end(desk: Desk) -> None:
    command = desk.train(FaultyJob(), groups=TWO_STAGES)
    ended = command.end()
    assert ended.code == ExitCode.DONE, ended.said
    assert list(command.temporary.glob("edgeswarm*")) == []
