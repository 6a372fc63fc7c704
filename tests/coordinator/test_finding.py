from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from edgeswarm.config import Folders
from edgeswarm.discovery import KnownAgents
from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm_coordinator.finding import Answer, Finder, Found, choose, selected
from edgeswarm_coordinator.options import DiscoveryOptions

from .stand_in_agent import StandInAgent

NOBODY = "127.0.0.1:9"  # the discard port: nobody listens there


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class Search:
    """A search by address only, and what it warned of."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.identity = Identity.load(folders.operator_dir, role=Role.OPERATOR)
        self.warnings: list[str] = []

    def __call__(self, *peers: str) -> Found:
        options = DiscoveryOptions(peers=peers, mdns=False)
        return Finder(options, identity=self.identity, folders=self.folders, warn=self.warnings.append).find()


@pytest.fixture
def search(folders: Folders, authority: CertificateAuthority) -> Search:
    assert authority.fingerprint
    return Search(folders)


def test_agents_are_found_by_address_and_remembered(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    agents = [stack.enter_context(StandInAgent.of(authority, f"nano-{n}-00000{n}")) for n in (1, 2)]
    found = search(*(agent.address for agent in agents))
    assert list(found.links) == ["nano-1-000001", "nano-2-000002"]
    assert found.how == "addresses"
    assert found.links["nano-1-000001"].device.memory_budget_bytes == 1 << 30
    assert KnownAgents(search.folders.state_dir).load()["nano-2-000002"] == (agents[1].address,)
    again = search()
    assert (list(again.links), again.how) == (["nano-1-000001", "nano-2-000002"], "remembered")
    agents[1].stop()
    assert list(search().links) == ["nano-1-000001"]
    assert search.warnings == [f"nano-2-000002 does not answer where it was last time ({agents[1].address})."]


def test_one_whose_address_another_has_now_is_forgotten(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    """A board that has another name since it joined again."""
    agent = stack.enter_context(StandInAgent.of(authority, "nano-2-000002"))
    known = KnownAgents(search.folders.state_dir)
    known.remember("nano-1-000001", [agent.address])
    assert list(search(agent.address).links) == ["nano-2-000002"]
    assert search.warnings == []
    assert known.load() == {"nano-2-000002": (agent.address,)}


def test_a_name_is_dialed_in_numbers(search: Search, authority: CertificateAuthority, stack: ExitStack) -> None:
    """The other devices, who are told the address, may not know the name."""
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001"))
    found = search(f"localhost:{agent.port}")
    assert found.links["nano-1-000001"].address == agent.address


def test_a_search_goes_on_where_nothing_can_be_written(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001"))
    # As a disk that is full or read-only, for root too: its lock can't be made.
    lock = search.folders.state_dir / f"{KnownAgents.FILE_NAME}.lock"
    lock.mkdir(parents=True)
    assert list(search(agent.address).links) == ["nano-1-000001"]
    assert [warning.partition(":")[0] for warning in search.warnings] == [
        "The remembered addresses can't be used",
        "The address of nano-1-000001 can't be remembered",
    ]


def test_an_address_where_nobody_answers_is_a_warning(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001"))
    assert list(search(agent.address, NOBODY).links) == ["nano-1-000001"]
    assert len(search.warnings) == 1
    assert NOBODY in search.warnings[0]


def test_nobody_at_all_is_exit_code_three(search: Search) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        search(NOBODY)
    assert caught.value.code is ErrorCode.NO_DEVICES
    assert caught.value.exit_code is ExitCode.NOTHING_FOUND
    assert NOBODY in caught.value.message
    assert "--peer" in caught.value.remedy


def test_two_boxes_with_one_node_id_are_both_left_out(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    identity = authority.issue(node_id="nano-1-000001", role=Role.AGENT)
    clones = [stack.enter_context(StandInAgent(identity, instance=word)) for word in ("one", "two")]
    other = stack.enter_context(StandInAgent.of(authority, "nano-2-000002"))
    found = search(other.address, *(clone.address for clone in clones))
    assert list(found.links) == ["nano-2-000002"]
    (warning,) = search.warnings
    assert all(clone.address in warning for clone in clones)
    assert "cloned" in warning
    with pytest.raises(EdgeswarmError) as caught:
        selected(found, ("nano-1",))
    assert caught.value.code is ErrorCode.CLONED_DEVICE
    assert all(clone.address in caught.value.message for clone in clones)
    other.stop()
    with pytest.raises(EdgeswarmError, match="Two devices call themselves nano-1-000001"):
        search(*(clone.address for clone in clones))


def test_one_box_at_two_addresses_is_one_box(search: Search, authority: CertificateAuthority, stack: ExitStack) -> None:
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001", instance="one"))
    assert list(search(agent.address, f"localhost:{agent.port}").links) == ["nano-1-000001"]
    assert search.warnings == []


def test_an_agent_that_was_started_anew_during_the_search_is_one_box(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001", instance="one"))
    before = search(agent.address).links["nano-1-000001"]
    now = replace(before, instance="two")
    choice = choose([Answer(before, "remembered"), Answer(now, "mdns")])
    assert choice.left_out == {}
    assert [answer.link.instance for answer in choice.chosen] == ["two"]
    elsewhere = replace(now, device=replace(now.device, address="10.0.0.9:7600"))
    assert list(choose([Answer(before, "remembered"), Answer(elsewhere, "mdns")]).left_out) == ["nano-1-000001"]


def test_another_version_is_left_out_and_named(
    search: Search, authority: CertificateAuthority, stack: ExitStack
) -> None:
    old = stack.enter_context(StandInAgent.of(authority, "nano-1-000001", protocol_version=99))
    with pytest.raises(EdgeswarmError) as caught:
        search(old.address)
    assert caught.value.code is ErrorCode.VERSION_DIFFERS
    assert "nano-1-000001 runs edgeswarm 9.9 (protocol 99)" in caught.value.message
    new = stack.enter_context(StandInAgent.of(authority, "nano-2-000002"))
    search.warnings.clear()
    assert list(search(old.address, new.address).links) == ["nano-2-000002"]
    assert "nano-1-000001" in search.warnings[0]
    with pytest.raises(EdgeswarmError, match="nano-1-000001 runs edgeswarm"):
        selected(search(old.address, new.address), ("nano-2", "nano-1"))


def test_a_clock_that_is_off_is_a_warning(search: Search, authority: CertificateAuthority, stack: ExitStack) -> None:
    agent = stack.enter_context(StandInAgent.of(authority, "nano-1-000001", clock_offset_seconds=-60.0))
    found = search(agent.address)
    assert found.links["nano-1-000001"].device.clock_offset_seconds == pytest.approx(-60, abs=2)
    assert "60 s behind" in search.warnings[0]


def test_an_agent_of_another_cluster_is_not_trusted(search: Search, folders: Folders, stack: ExitStack) -> None:
    stranger = CertificateAuthority.create(folders.state_dir / "other")
    agent = stack.enter_context(StandInAgent.of(stranger, "nano-1-000001"))
    with pytest.raises(EdgeswarmError) as caught:
        search(agent.address)
    assert caught.value.code is ErrorCode.TRUST


def test_devices_are_chosen_by_name(search: Search, authority: CertificateAuthority, stack: ExitStack) -> None:
    agents = [
        stack.enter_context(StandInAgent.of(authority, node_id))
        for node_id in ("nano-000001", "nano-000002", "nx-000003")
    ]
    found = search(*(agent.address for agent in agents))
    assert list(selected(found, ())) == ["nano-000001", "nano-000002", "nx-000003"]
    assert list(selected(found, ("nx", "nano-000002"))) == ["nx-000003", "nano-000002"]
    with pytest.raises(EdgeswarmError, match="is the name of nano-000001 and nano-000002"):
        selected(found, ("nano",))
    with pytest.raises(EdgeswarmError, match="was not found") as caught:
        selected(found, ("tx2",))
    assert caught.value.exit_code is ExitCode.NOTHING_FOUND
