"""`edgeswarm-agent` as a person and a service manager run it: real processes, and the real worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import edgeswarm_agent
from edgeswarm.config import Folders
from edgeswarm.model.export import export_model
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.security.join import JoinServer
from edgeswarm.security.token import TokenStore
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc
from edgeswarm_agent import cli as command_line
from edgeswarm_agent.only_one import OnlyOne

from .processes import Cluster, environment, exists, wait_until

COMMAND = (sys.executable, "-m", "edgeswarm_agent.cli")
JOB = agent_pb2.JobReference(job_id="digits-1", term=1)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.create(tmp_path)


def test_a_log_that_nobody_keeps_holds_nothing_up() -> None:
    """A full disk; a terminal that is gone is the same."""
    code = "from edgeswarm_agent.cli import _say; _say('a worker died'); print('and is told')"
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, check=False)
    assert ran.stdout == b"and is told\n"


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(home), capture_output=True, text=True, timeout=60, check=False
    )


def refused_here(home: Path, *arguments: str) -> Result:
    """The command in this process, for what it or the join server refuses: a process takes a second to import it all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "_StopSignal", object)  # the signals of this process are pytest's
        return CliRunner(env={"EDGESWARM_HOME": str(home)}).invoke(command_line.cli, list(arguments))


class Running:
    """`edgeswarm-agent run` as a process."""

    def __init__(self, cluster: Cluster) -> None:
        _, folders = cluster.agent("box")
        home = folders.state_dir.parent
        arguments = ("run", "--listen", "127.0.0.1", "--port", "0", "--no-mdns", "--threads", "1", "--json-ready")
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment(home), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())
        self.channel = secure_channel(self.ready["address"], identity=cluster.operator, node_id=self.ready["node_id"])
        self.stub = agent_pb2_grpc.AgentStub(self.channel)  # type: ignore[no-untyped-call]

    def worker(self) -> int:
        """Reserves the device and gives its worker's process id."""
        self.stub.Reserve(agent_pb2.ReserveRequest(job=JOB, lease_seconds=30.0), timeout=20.0)
        watch = self.stub.Watch(agent_pb2.WatchRequest(job=JOB), timeout=60.0)
        for event in watch:
            if event.heartbeat.worker.tensor_port:
                process_id: int = event.heartbeat.worker.process_id
                return process_id
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def running(cluster: Cluster) -> Iterator[Running]:
    agent = Running(cluster)
    yield agent
    agent.close()


@pytest.mark.thorough
def test_the_real_worker_profiles_dies_is_started_again_and_never_outlives_its_daemon(running: Running) -> None:
    assert running.ready == {
        "node_id": "box-0a0a0a",
        "address": f"127.0.0.1:{running.ready['port']}",
        "port": running.ready["port"],
    }
    first = running.worker()
    torch.manual_seed(0)
    graph = export_model(torch.nn.Sequential(torch.nn.Linear(4, 3)), (torch.randn(4, 4),)).layer_graph
    layer = agent_pb2.ProfileLayer(
        signature=graph.layers[0].signature, stage_graph_json=json.dumps(graph.stage(0, 1).to_json()).encode()
    )
    profile = agent_pb2.ProfileRequest(job=JOB, layers=[layer], batch_sizes=[1, 2], longest_seconds=1.0)
    curve, second_look, again, cost = list(running.stub.Profile(profile, timeout=60.0))
    assert list(curve.curve.batch_sizes) == [1, 2]
    assert again.curve.signature == second_look.curve.signature == curve.curve.signature
    assert cost.process.base_bytes > 0

    os.kill(first, signal.SIGKILL)
    watch = running.stub.Watch(agent_pb2.WatchRequest(job=JOB), timeout=60.0)
    failure = next(event.failure for event in watch if event.HasField("failure"))
    assert failure.worker_died
    assert "SIGKILL" in failure.error_json
    watch.cancel()
    list(running.stub.Profile(profile, timeout=60.0))
    second = running.worker()
    assert second != first

    running.process.kill()
    running.process.wait()
    wait_until(lambda: not exists(second), seconds=30.0)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough)]
)
def test_a_signal_stops_the_agent_and_its_worker(running: Running, number: signal.Signals, code: int) -> None:
    running.stub.Reserve(agent_pb2.ReserveRequest(job=JOB, lease_seconds=30.0), timeout=20.0)
    beat = next(iter(running.stub.Watch(agent_pb2.WatchRequest(job=JOB), timeout=20.0))).heartbeat
    assert exists(beat.worker.process_id)
    running.process.send_signal(number)
    assert running.process.wait(timeout=10.0) == code
    assert not exists(beat.worker.process_id)


def test_ready_is_one_line_for_a_person_too(cluster: Cluster) -> None:
    identity, folders = cluster.agent("box")
    arguments = ("run", "--listen", "127.0.0.1", "--port", "0", "--no-mdns", "--home", str(folders.state_dir.parent))
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert line.startswith(f"agent {identity.node_id} listens on 127.0.0.1:")
    assert line.rstrip().endswith(f"(cluster {identity.cluster_fingerprint[:16]})")


def test_run_without_a_cluster_is_one_message_and_a_remedy(tmp_path: Path) -> None:
    result = refused_here(tmp_path, "run", "--port", "0")
    assert result.exit_code == 1
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("error: This machine has not joined a cluster")
    assert second.startswith("remedy: ")
    assert "edgeswarm-agent join" in second


def test_a_wrong_setting_is_a_usage_error(tmp_path: Path) -> None:
    result = refused_here(tmp_path, "run", "--slow-down", "0.5", "--json-ready")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "config"


def test_join_saves_an_identity(cluster: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "new"
    authority_folder = cluster.folder / "authority"
    token = TokenStore(authority_folder).create(cluster.authority.fingerprint)
    with JoinServer(cluster.authority, authority_folder, host="127.0.0.1", port=0) as server:
        address = f"127.0.0.1:{server.port}"
        failed = refused_here(home, "join", address, f"ES1{'0' * 64}::{'0' * 32}", "--name", "hall")
        assert failed.exit_code == 1
        joined = run(home, "join", address, str(token), "--name", "kitchen", "--json")
        assert joined.returncode == 0, joined.stderr
        refused = refused_here(tmp_path / "another", "join", address, str(token))
    node_id = json.loads(joined.stdout)["node_id"]
    assert node_id.startswith("kitchen-")  # the attempt before that failed has fixed no name
    assert Identity.load(home / "state" / "agent", role=Role.AGENT).node_id == node_id
    assert refused.exit_code == 1
    assert "error: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_join_beside_a_running_agent_says_which_process_is_to_be_restarted(cluster: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "new"
    authority_folder = cluster.folder / "authority"
    token = TokenStore(authority_folder).create(cluster.authority.fingerprint)
    in_this_process = CliRunner(env={"EDGESWARM_HOME": str(home)})
    with JoinServer(cluster.authority, authority_folder, host="127.0.0.1", port=0) as server:
        arguments = ["join", f"127.0.0.1:{server.port}", str(token)]
        first = in_this_process.invoke(command_line.cli, arguments)
        running = OnlyOne(Folders.within(home).agent_dir)
        again = in_this_process.invoke(command_line.cli, arguments)
        running.release()
    assert f"start the agent with `edgeswarm-agent run --home {home}`" in first.stderr
    assert again.exit_code == 0, again.stderr
    assert f"(process {os.getpid()}) has its old identity until you restart it" in again.stderr
    assert "edgeswarm-agent run" not in again.stderr


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", "nonsense"), ("a:b:c", "ES1" + "0" * 64 + "::" + "0" * 32)])
def test_join_with_nonsense_is_refused_before_anything_is_sent(tmp_path: Path, host: str, token: str) -> None:
    result = refused_here(tmp_path, "join", host, token)
    assert result.exit_code in {1, 2}
    assert "error: " in result.stderr
    assert not (tmp_path / "state" / "agent" / "identity.pem").exists()


@pytest.mark.thorough
def test_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, "doctor", "--interface", "lo", "--json")
    assert result.returncode == 1
    document = json.loads(result.stdout)
    levels = {check["check"]: check["level"] for check in document["checks"]}
    assert document["ok"] is False
    assert levels["identity"] == "problem"
    assert levels["torch"] == "ok"
    assert levels["clock"] == "ok"
    assert set(levels) == {"identity", "clock", "ports", "mdns", "torch", "memory"}
    # That this device hasn't joined is told once.
    assert sum("join" in check["message"] + check["remedy"] for check in document["checks"]) == 1


def test_the_daemon_never_imports_torch() -> None:
    folder = Path(edgeswarm_agent.__path__[0])
    modules = [
        ".".join(("edgeswarm_agent", *path.relative_to(folder).with_suffix("").parts))
        for path in sorted([*folder.glob("*.py"), *folder.glob("telemetry/*.py")])
    ]
    assert "edgeswarm_agent.daemon" in modules
    program = "import importlib, sys\n" + "".join(f"importlib.import_module({name!r})\n" for name in modules)
    program += "assert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
