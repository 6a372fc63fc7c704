"""`init`, `token create` and `edgeswarm-agent join` as a person types them: real processes, real HTTPS on loopback."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm import discovery
from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ExitCode
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.security.token import Token, TokenStore
from edgeswarm_coordinator import own_address
from edgeswarm_coordinator.cli import token_command

from .conftest import Invoke

EDGESWARM = (sys.executable, "-c", "from edgeswarm_coordinator.cli import main; main()")
AGENT = (sys.executable, "-m", "edgeswarm_agent.cli")
TIMEOUT_SECONDS = 30


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "EDGESWARM_HOME": str(home)}


@pytest.fixture
def cluster(home: Path, invoke: Invoke) -> Path:
    """The home of an operator who has run `edgeswarm init`."""
    assert invoke("init").exit_code == ExitCode.DONE
    return home


@pytest.fixture
def waiting(cluster: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A running `token create` for one device, and the document that it printed."""
    arguments = ["token", "create", "--listen", "127.0.0.1", "--join-port", "0", "--json"]
    process = subprocess.Popen(
        [*EDGESWARM, *arguments],
        env=environment(cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        yield process, json.loads(text)
    finally:
        process.kill()
        process.communicate()


def test_init_makes_a_cluster_once(home: Path, invoke: Invoke) -> None:
    first = invoke("init", "--json")
    document = json.loads(first.stdout)
    operator = Identity.load(Folders.within(home).operator_dir, role=Role.OPERATOR)
    assert (document["operator"], document["cluster"]) == (operator.node_id, operator.cluster_fingerprint)
    second = invoke("init")
    assert second.exit_code == ExitCode.ERROR
    assert "already" in second.stderr
    assert "remedy: " in second.stderr


def test_init_tells_a_person_what_comes_next(invoke: Invoke) -> None:
    result = invoke("init")
    assert result.stdout.startswith("cluster ")
    assert "edgeswarm token create" in result.stderr


@pytest.mark.parametrize(
    ("towards", "likely"),
    [
        ("10.8.0.6", ("192.168.5.1", "192.168.7.2")),
        ("192.168.7.2", ("192.168.7.2", "192.168.5.1")),
        (None, ("192.168.5.1", "192.168.7.2")),
    ],
)
def test_the_addresses_to_join_at_are_no_tunnels(
    monkeypatch: pytest.MonkeyPatch, towards: str | None, likely: tuple[str, ...]
) -> None:
    addresses = {"eth0": "192.168.5.1", "wg0": "10.8.0.6", "wlan0": "192.168.7.2"}
    available = [discovery.InterfaceAddress(name, address) for name, address in addresses.items()]

    def own_host_towards(_: str) -> str:
        if towards is None:
            raise OSError("no route")
        return towards

    monkeypatch.setattr(discovery, "interface_addresses", lambda: available)
    monkeypatch.setattr(own_address, "own_host_towards", own_host_towards)
    assert token_command._likely_addresses() == likely


def test_a_machine_without_a_network_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_host_towards(_: str) -> str:
        raise OSError("no route")

    monkeypatch.setattr(discovery, "interface_addresses", lambda: [])
    monkeypatch.setattr(own_address, "own_host_towards", own_host_towards)
    assert token_command._likely_addresses() == (socket.gethostname(),)


def test_a_token_without_a_cluster_is_refused(invoke: Invoke) -> None:
    result = invoke("token", "create")
    assert result.exit_code == ExitCode.ERROR
    assert "edgeswarm init" in result.stderr


def test_the_command_that_is_printed_lets_a_device_join(
    waiting: tuple[subprocess.Popen[str], dict[str, str]], tmp_path: Path
) -> None:
    process, document = waiting
    program, *arguments = shlex.split(document["command"])
    assert program == "edgeswarm-agent"
    device = tmp_path / "device"
    joining = subprocess.run(
        [*AGENT, *arguments],
        env=environment(device),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert joining.returncode == 0, joining.stderr
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == ExitCode.DONE, "the token is used up: there is nobody to wait for"
    identity = Identity.load(Folders.within(device).agent_dir, role=Role.AGENT)
    assert f"joined: {identity.node_id} from 127.0.0.1" in errors
    assert document["command"] in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting_and_the_token(
    number: signal.Signals, cluster: Path, waiting: tuple[subprocess.Popen[str], dict[str, str]]
) -> None:
    process, told = waiting
    process.send_signal(number)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == ExitCode.INTERRUPTED
    assert output == "", "the one document was printed already"
    assert "error: Stopped waiting; 0 devices joined." in errors
    assert "Traceback" not in errors
    with pytest.raises(EdgeswarmError, match="used up"):  # whoever waits next would let its holder in
        TokenStore(Folders.within(cluster).authority_dir).spend(
            Token.parse(told["token"]).secret, node_id="nano-00a1b2", key_fingerprint="a"
        )


def test_a_token_that_nobody_used_in_time_is_an_error(cluster: Path, invoke: Invoke) -> None:
    result = invoke("token", "create", "--listen", "127.0.0.1", "--join-port", "0", "--valid-minutes", "0.002")
    assert result.exit_code == ExitCode.ERROR
    assert result.stdout.startswith("ES1")
    assert result.stdout.count("\n") == 1, "the token alone is data"
    assert "expired" in result.stderr


@pytest.mark.parametrize("minutes", ["nan", "inf", "9999999999", "0"])
def test_a_time_that_is_none_is_refused_and_no_token_is_made(cluster: Path, invoke: Invoke, minutes: str) -> None:
    result = invoke("token", "create", "--valid-minutes", minutes)
    assert result.exit_code == ExitCode.USAGE
    assert "--valid-minutes" in result.stderr
    assert result.stdout == ""
    assert not (Folders.within(cluster).authority_dir / "tokens.json").exists()


def test_a_taken_port_is_named(
    waiting: tuple[subprocess.Popen[str], dict[str, str]], invoke: Invoke, cluster: Path
) -> None:
    port = str(waiting[1]["port"])
    result = invoke("token", "create", "--listen", "127.0.0.1", "--join-port", port)
    assert result.exit_code == ExitCode.ERROR
    assert port in result.stderr
