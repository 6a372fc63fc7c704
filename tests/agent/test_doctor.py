"""What `edgeswarm-agent doctor` says of the processor or card, and of mDNS; the whole command is in test_cli.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edgeswarm.config import AgentSettings, Folders
from edgeswarm_agent import doctor


@pytest.mark.parametrize(("guessed", "level"), [("cuda", "warning"), ("cpu", "ok")])
def test_a_card_that_torch_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch, guessed: str, level: str) -> None:
    monkeypatch.setattr(doctor, "guess_accelerator", lambda torch: guessed)
    settings = AgentSettings(threads=3)
    found = doctor._computes(settings, version="2.13.0", accelerator="cpu", remedy="Install another one.")
    assert found.level == level
    assert found.message.startswith("2.13.0, 3 threads, cpu")
    assert ("can't use the graphics card" in found.message) == (level == "warning")
    assert bool(found.remedy) == (level == "warning")


def test_an_agent_that_does_not_announce_itself_needs_no_mdns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "Advertiser", None)  # and it isn't called
    found = doctor._mdns(AgentSettings(advertise=False))
    assert (found.level, found.message) == ("ok", "not announced")
    assert "--peer" in found.remedy


class Announcing:
    """An Advertiser that writes down where it would announce."""

    interfaces: tuple[str, ...] | None = None

    def __init__(self, *, interfaces: tuple[str, ...], **_others: object) -> None:
        Announcing.interfaces = interfaces

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


def test_mdns_is_tried_where_the_agent_would_announce_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[tuple[str, ...]] = []

    def find(_fingerprint: str, *, interfaces: tuple[str, ...], **_others: object) -> list[str]:
        searched.append(interfaces)
        return ["doctor"]

    monkeypatch.setattr(doctor, "Advertiser", Announcing)
    monkeypatch.setattr(doctor, "find_agents", find)
    found = doctor._mdns(AgentSettings(listen_address="127.0.0.1"))
    assert (found.level, found.message) == ("ok", "announcing works on 127.0.0.1")
    assert Announcing.interfaces == searched[0] == ("127.0.0.1",)


def four_free_ports() -> int:
    """The first of them; looked for once more by whoever finds one taken."""
    for first in range(20600, 21600, 10):
        try:
            for port in range(first, first + 4):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    pytest.skip("no four free ports in a row")


def test_all_four_ports_are_looked_at(tmp_path: Path) -> None:
    folders, first = Folders.within(tmp_path), four_free_ports()
    settings = AgentSettings(listen_address="127.0.0.1", port=first)
    found = doctor._port(settings, folders)
    assert (found.level, found.message) == ("ok", f"{first}, {first + 1}, {first + 2}, {first + 3} are free")
    for behind, level in ((1, "problem"), (2, "warning"), (3, "warning")):
        with socket.create_server(("127.0.0.1", first + behind)):
            found = doctor._port(settings, folders)
        assert found.level == level
        assert str(first + behind) in found.message
    assert doctor._port(AgentSettings(listen_address="127.0.0.1", port=0), folders).message == "any free port is taken"
