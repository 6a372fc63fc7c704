"""Folders, addresses, and settings from flags, environment and file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edgeswarm.config import (
    AgentSettings,
    Folders,
    OperatorSettings,
    host_and_port,
    join_host_and_port,
    load_agent_settings,
    load_operator_settings,
)
from edgeswarm.errors import EdgeswarmError, ErrorCode

# --- folders ----------------------------------------------------------------------------------------------------------


def test_one_folder_holds_everything_where_it_is_named(tmp_path: Path) -> None:
    folders = Folders.find(environment={"EDGESWARM_HOME": str(tmp_path)})
    assert folders == Folders.within(tmp_path)
    assert all(tmp_path in path.parents for path in dataclasses.astuple(folders))
    assert len({folders.agent_dir, folders.operator_dir, folders.authority_dir}) == 3
    assert list(tmp_path.iterdir()) == []  # nothing is made by asking


def test_a_person_has_xdg_folders() -> None:
    names = ("CONFIG_HOME", "STATE_HOME", "CACHE_HOME")
    folders = Folders.find(environment={f"XDG_{name}": f"/x/{name}" for name in names})
    assert [str(path) for path in dataclasses.astuple(folders)] == [f"/x/{name}/edgeswarm" for name in names]


def test_a_person_without_xdg_variables_has_the_defaults() -> None:
    folders = Folders.find(environment={"XDG_CONFIG_HOME": "relative/is/ignored"})
    assert folders.config_dir == Path.home() / ".config/edgeswarm"
    assert folders.state_dir == Path.home() / ".local/state/edgeswarm"


def test_a_home_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EdgeswarmError, match="~no-such-user/here means isn't known") as caught:
        Folders.find(environment={"EDGESWARM_HOME": "~no-such-user/here"})
    assert caught.value.code is ErrorCode.CONFIG
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(
        "pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError())
    )  # as in a container with a user of its own
    with pytest.raises(EdgeswarmError, match="home directory") as caught:
        Folders.find(environment={})
    assert "EDGESWARM_HOME" in caught.value.remedy


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box:7600", ("box", 7600)),
        ("192.168.1.20:1", ("192.168.1.20", 1)),
        ("[fd00::1]:7600", ("fd00::1", 7600)),
        ("box.local", ("box.local", 7600)),
        ("[fd00::1]", ("fd00::1", 7600)),
    ],
)
def test_addresses_are_read_and_written(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, default_port=7600) == expected
    assert host_and_port(join_host_and_port(*expected)) == expected


@pytest.mark.parametrize("text", ["", ":7600", "box:", "box:x", "box:70000", "fd00::1", "http://box:1", "a b:1", "box"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets"):
        host_and_port(text)


@pytest.mark.parametrize("host", ["192.168.1..5", "nano..local", "n" * 64 + ".local"])
def test_a_host_that_cannot_be_looked_up_is_no_address(host: str) -> None:
    with pytest.raises(ValueError, match="no host is called so"):
        host_and_port(f"{host}:7600")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "edgeswarm.toml"


def test_defaults_without_any_source(file: Path) -> None:
    assert load_agent_settings(environment={}, file=file) == AgentSettings()
    assert load_operator_settings(environment={}) == OperatorSettings()
    assert AgentSettings().effective_worker_port == 7601


@pytest.mark.parametrize(("port", "worker_port", "expected"), [(0, None, 0), (65535, None, 0), (9, 7, 7), (9, 0, 0)])
def test_the_workers_port_follows_the_agents(port: int, worker_port: int | None, expected: int) -> None:
    assert AgentSettings(port=port, worker_port=worker_port).effective_worker_port == expected


@pytest.mark.parametrize(
    ("listen_address", "interfaces", "expected"),
    [
        ("0.0.0.0", (), ()),
        ("::", ("eth0",), ("eth0",)),
        ("192.168.1.5", (), ("192.168.1.5",)),
        ("192.168.1.5", ("eth0",), ("eth0",)),
    ],
)
def test_one_address_to_listen_on_is_the_one_to_announce_on(
    listen_address: str, interfaces: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert AgentSettings(listen_address=listen_address, interfaces=interfaces).effective_interfaces == expected


def test_flag_over_environment_over_file_over_default(file: Path) -> None:
    file.write_text("[agent]\nport = 1\nworker_port = 2\nthreads = 3\n[operator]\njoin_port = 5\n")
    environment = {"EDGESWARM_PORT": "10", "EDGESWARM_WORKER_PORT": "20", "EDGESWARM_JOIN_PORT": "50", "HOME": "/"}
    settings = load_agent_settings(flags={"port": 100, "threads": None}, environment=environment, file=file)
    assert (settings.port, settings.worker_port, settings.threads, settings.slow_down) == (100, 20, 3, 1.0)
    assert load_operator_settings(environment={}, file=file).join_port == 5


def test_every_type_from_file_and_from_environment(file: Path) -> None:
    file.write_text(
        '[agent]\nname = "nano"\ninterfaces = ["eth0", "wlan0"]\nadvertise = false\nslow_down = 2\n'
        'memory_limit = "1.5 GiB"\n[operator]\npeers = ["box", "[fd00::1]:9"]\n'
    )
    expected = AgentSettings(
        name="nano", interfaces=("eth0", "wlan0"), advertise=False, slow_down=2.0, memory_limit_bytes=3 * 2**29
    )
    assert load_agent_settings(environment={}, file=file) == expected
    environment = {
        "EDGESWARM_NAME": "nano",
        "EDGESWARM_INTERFACES": "eth0, wlan0",
        "EDGESWARM_ADVERTISE": "no",
        "EDGESWARM_SLOW_DOWN": "2.0",
        "EDGESWARM_MEMORY_LIMIT": "1610612736",
        "EDGESWARM_PEERS": "box,[fd00::1]:9",
    }
    assert load_agent_settings(environment=environment) == expected
    assert load_operator_settings(environment=environment).peers == ("box:7600", "[fd00::1]:9")
    assert load_operator_settings(environment={}, file=file).peers == ("box:7600", "[fd00::1]:9")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("port = 70000", "70000 is not a port"),
        ("port = true", "True is not a whole number"),
        ('port = "http"', "'http' is not a whole number"),
        ("slow_down = 0.5", "0.5 is below 1"),
        ("ready_worker = -1", "is below 0 seconds"),
        ("slow_down = nan", "not a finite number"),
        ("threads = 0", "0 is below 1"),
        ("memory_limit = '4 GiBs'", "'4 GiBs' is not a size"),
        ("memory_limit = 0", "below 1 byte"),
        ("interfaces = 3", "3 is not a list"),
        ("interfaces = [3]", "is not a text"),
        ("advertise = 'maybe'", "neither true nor false"),
        ("name = ''", "is not a text"),
    ],
)
def test_a_bad_value_names_key_file_and_reason(file: Path, line: str, complaint: str) -> None:
    file.write_text(f"[agent]\n{line}\n")
    with pytest.raises(EdgeswarmError) as caught:
        load_agent_settings(environment={}, file=file)
    assert caught.value.code is ErrorCode.CONFIG
    assert complaint in caught.value.message
    assert f"`{line.partition(' ')[0]}` in [agent] of {file}" in caught.value.message
    assert caught.value.remedy


def test_a_bad_value_names_its_variable_or_flag() -> None:
    with pytest.raises(EdgeswarmError, match=r"the environment variable EDGESWARM_PORT: '70000' is not a port"):
        load_agent_settings(environment={"EDGESWARM_PORT": "70000"})
    with pytest.raises(EdgeswarmError, match=r"--slow-down: 0\.1 is below 1"):
        load_agent_settings(flags={"slow_down": 0.1}, environment={})
    with pytest.raises(EdgeswarmError, match=r"--peer: .* not a list of addresses .*brackets"):
        load_operator_settings(flags={"peers": ("fd00::1",)}, environment={})
    with pytest.raises(EdgeswarmError, match="EDGESWARM_DATA_PORT: '65535' has no port behind it"):
        load_operator_settings(environment={"EDGESWARM_DATA_PORT": "65535"})
    with pytest.raises(EdgeswarmError, match="EDGESWARM_LOST_SECONDS: '2' is below 3 seconds"):
        load_operator_settings(environment={"EDGESWARM_LOST_SECONDS": "2"})
    with pytest.raises(EdgeswarmError, match="EDGESWARM_LOST_SECONDS: '8' is above 7 seconds"):
        load_operator_settings(environment={"EDGESWARM_LOST_SECONDS": "8"})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[agent]\nprot = 1\n", "Unknown setting prot in .agent. .* Did you mean port?"),
        ("[agnet]\n", "Unknown setting agnet in .* Did you mean .agent."),
        ("port = 1\n", "Unknown setting port in"),
        ("agent = 1\n", "is not a table"),
        ("[agent\n", "is not a TOML file"),
    ],
)
def test_what_the_file_must_not_hold(file: Path, content: str, complaint: str) -> None:
    file.write_text(content)
    with pytest.raises(EdgeswarmError, match=complaint) as caught:
        load_agent_settings(environment={}, file=file)
    assert caught.value.code is ErrorCode.CONFIG


def test_a_misspelt_variable_is_an_error() -> None:
    with pytest.raises(
        EdgeswarmError, match=r"Unknown setting EDGESWARM_SLOWDOWN .* Did you mean EDGESWARM_SLOW_DOWN\?"
    ):
        load_agent_settings(environment={"EDGESWARM_SLOWDOWN": "2"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="can't be read"):
        load_agent_settings(environment={}, file=tmp_path)
