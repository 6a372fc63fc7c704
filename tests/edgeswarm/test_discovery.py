"""mDNS for real on loopback, the rules for interfaces, and the addresses that are remembered."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zeroconf
from zeroconf._dns import DNSAddress, DNSPointer, DNSService, DNSText
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.const import (
    _CLASS_IN,
    _FLAGS_AA,
    _FLAGS_QR_RESPONSE,
    _MDNS_ADDR,
    _MDNS_PORT,
    _TYPE_A,
    _TYPE_PTR,
    _TYPE_SRV,
    _TYPE_TXT,
)

from edgeswarm.discovery import (
    SERVICE_TYPE,
    Advertiser,
    FoundAgent,
    InterfaceAddress,
    KnownAgents,
    choose_addresses,
    duplicated_node_ids,
    find_agents,
    interface_addresses,
)
from tests.multicast_here import why_no_multicast

LOOPBACK = ("lo",)
FINGERPRINT = secrets.token_hex(32)  # new each time: another run of these tests on this machine hears our packets
FIRST, SECOND, ALIEN = (f"{name}-{secrets.token_hex(3)}" for name in ("first", "second", "alien"))
PATIENCE_SECONDS = 15.0  # nobody waits that long where it works


@pytest.fixture
def multicast() -> None:
    if reason := why_no_multicast():
        pytest.skip(reason)


def ignore(_warning: str) -> None:
    """For an announcement whose warnings a test doesn't look at."""


@contextlib.contextmanager
def announced(
    node_id: str, port: int, *, fingerprint: str = FINGERPRINT, warnings: list[str] | None = None
) -> Iterator[Advertiser]:
    advertiser = Advertiser(
        node_id=node_id,
        port=port,
        fingerprint=fingerprint,
        protocol_version=3,
        interfaces=LOOPBACK,
        warn=ignore if warnings is None else warnings.append,
        check_seconds=0.2,
    )
    advertiser.start()
    try:
        yield advertiser
    finally:
        advertiser.stop()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """The limit only ends a test that is stuck."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def find(count: int, *, fingerprint: str = FINGERPRINT) -> list[FoundAgent]:
    def enough(agents: Sequence[FoundAgent]) -> bool:
        return len(agents) >= count

    return find_agents(fingerprint, timeout_seconds=PATIENCE_SECONDS, interfaces=LOOPBACK, enough=enough)


# --- on the network ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("multicast")
def test_two_agents_of_one_machine_are_both_found_and_another_clusters_is_not() -> None:
    with (
        announced(FIRST, 7001) as a,
        announced(SECOND, 7002) as b,
        announced(ALIEN, 7003, fingerprint=secrets.token_hex(32)) as c,
    ):
        assert all(advertiser.wait_until_announced(PATIENCE_SECONDS) for advertiser in (a, b, c))
        found = find(2)
        assert found == [
            FoundAgent(node_id=FIRST, addresses=("127.0.0.1",), port=7001, protocol_version=3),
            FoundAgent(node_id=SECOND, addresses=("127.0.0.1",), port=7002, protocol_version=3),
        ]
        assert found[0].targets() == ("127.0.0.1:7001",)
        assert duplicated_node_ids(found) == {}
    assert find_agents(FINGERPRINT, timeout_seconds=0.5, interfaces=LOOPBACK) == []  # they said goodbye


@pytest.mark.thorough
@pytest.mark.usefixtures("multicast")
def test_a_cloned_node_id_is_found_at_both_places() -> None:
    alone: list[str] = []
    beside: list[str] = []
    with announced(FIRST, 7001, warnings=alone) as original:
        assert original.wait_until_announced(PATIENCE_SECONDS)
        with announced(FIRST, 7002, warnings=beside) as clone:
            assert clone.wait_until_announced(PATIENCE_SECONDS)
            duplicates = duplicated_node_ids(find(2))
            assert within(PATIENCE_SECONDS, lambda: bool(alone and beside)), "both are told"
    assert [agent.port for agent in duplicates[FIRST]] == [7001, 7002]
    assert alone == beside
    (warning,) = beside
    assert warning.startswith(f"Another agent on this network announces the node id {FIRST} too.")


@pytest.mark.thorough
@pytest.mark.usefixtures("multicast")
@pytest.mark.parametrize("number", ["", "-2", "-3"])
def test_the_first_is_told_whichever_name_the_later_one_takes(number: str) -> None:
    """Whether that hears that its name is taken is not for it to say, where both share an address and a port."""
    warnings: list[str] = []
    later = zeroconf.ServiceInfo(
        SERVICE_TYPE,
        f"{SECOND}{number}.{SERVICE_TYPE}",
        port=7002,
        server=f"{SECOND}-later.local.",
        parsed_addresses=["127.0.0.1"],
    )
    with announced(SECOND, 7001, warnings=warnings) as first:
        assert first.wait_until_announced(PATIENCE_SECONDS)
        assert warnings == []
        with contextlib.closing(zeroconf.Zeroconf(interfaces=["127.0.0.1"])) as network:
            network.register_service(later, cooperating_responders=True)  # without asking for the name
            assert within(PATIENCE_SECONDS, lambda: bool(warnings))
    assert warnings[0].startswith(f"Another agent on this network announces the node id {SECOND} too.")


@pytest.mark.thorough
@pytest.mark.usefixtures("multicast")
def test_a_name_of_another_type_ends_no_search() -> None:
    """Any program on the network may say that a printer is one of ours."""
    warnings: list[str] = []
    lie = DNSOutgoing(_FLAGS_QR_RESPONSE | _FLAGS_AA)
    lie.add_answer_at_time(DNSPointer(SERVICE_TYPE, _TYPE_PTR, _CLASS_IN, 120, "printer._http._tcp.local."), 0)
    over = threading.Event()
    with announced(FIRST, 7001) as agent, zeroconf.Zeroconf(interfaces=["127.0.0.1"]) as stranger:

        def tell() -> None:
            while not over.wait(0.05):
                stranger.send(lie)

        telling = threading.Thread(target=tell)
        telling.start()
        assert agent.wait_until_announced(PATIENCE_SECONDS)
        found = find_agents(FINGERPRINT, timeout_seconds=2, interfaces=LOOPBACK, warn=warnings.append)
        over.set()
        telling.join()
    assert [agent.node_id for agent in found] == [FIRST]
    assert warnings == []


def with_a_part_of_an_address() -> bytes:
    """An announcement that ends within its last record."""
    name, host = f"{ALIEN}.{SERVICE_TYPE}", "stranger.local."
    properties = f"node={ALIEN}", f"cluster={FINGERPRINT[:16]}", "version=1"
    text = b"".join(bytes([len(each)]) + each.encode() for each in properties)
    packet = DNSOutgoing(_FLAGS_QR_RESPONSE | _FLAGS_AA)
    packet.add_answer_at_time(DNSPointer(SERVICE_TYPE, _TYPE_PTR, _CLASS_IN, 120, name), 0)
    packet.add_answer_at_time(DNSService(name, _TYPE_SRV, _CLASS_IN, 120, 0, 0, 7009, host), 0)
    packet.add_answer_at_time(DNSText(name, _TYPE_TXT, _CLASS_IN, 120, text), 0)
    packet.add_answer_at_time(DNSAddress(host, _TYPE_A, _CLASS_IN, 120, b"\x7f\x00\x00\x01"), 0)
    return packet.packets()[0][:-2]


def with_a_host_that_is_no_text() -> bytes:
    """Each of its bytes is read as a character of three, and the whole is then longer than a name may be."""
    name = f"{ALIEN}.{SERVICE_TYPE}"
    packet = DNSOutgoing(_FLAGS_QR_RESPONSE | _FLAGS_AA)
    packet.add_answer_at_time(DNSPointer(SERVICE_TYPE, _TYPE_PTR, _CLASS_IN, 120, name), 0)
    packet.add_answer_at_time(DNSService(name, _TYPE_SRV, _CLASS_IN, 120, 0, 0, 7009, f"{'h' * 30}.local."), 0)
    return packet.packets()[0].replace(b"h" * 30, b"\xff" * 30)


@pytest.mark.usefixtures("multicast")
@pytest.mark.parametrize(
    "packet", [with_a_part_of_an_address(), with_a_host_that_is_no_text()], ids=["address", "host"]
)
def test_nonsense_on_the_network_ends_no_search(packet: bytes) -> None:
    warnings: list[str] = []
    over = threading.Event()
    with announced(FIRST, 7001) as agent, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))

        def tell() -> None:
            while not over.wait(0.05):
                stranger.sendto(packet, (_MDNS_ADDR, _MDNS_PORT))

        telling = threading.Thread(target=tell)
        telling.start()
        try:
            assert agent.wait_until_announced(PATIENCE_SECONDS)
            found = find_agents(FINGERPRINT, timeout_seconds=2, interfaces=LOOPBACK, warn=warnings.append)
        finally:
            over.set()
            telling.join()
    assert [agent.node_id for agent in found] == [FIRST]
    assert warnings == []


def test_an_interface_that_is_not_there_is_a_warning() -> None:
    warnings: list[str] = []
    assert find_agents(FINGERPRINT, timeout_seconds=5, interfaces=("nope0",), warn=warnings.append) == []
    advertiser = Advertiser(
        node_id=FIRST,
        port=1,
        fingerprint=FINGERPRINT,
        protocol_version=1,
        interfaces=("nope0",),
        warn=warnings.append,
        check_seconds=0.01,
    )
    advertiser.start()
    assert not advertiser.wait_until_announced(0.1)
    advertiser.stop()
    off = "mDNS is off: this machine has no IPv4 address on nope0."
    assert sorted(warnings) == [  # each said it once
        f"{off} Give the agents' addresses with --peer.",
        f"{off} It is looked for again every 0.01 s; --peer reaches this agent without.",
    ]


@pytest.mark.thorough
@pytest.mark.usefixtures("multicast")
def test_an_address_that_comes_late_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    present: list[InterfaceAddress] = []
    monkeypatch.setattr("edgeswarm.discovery.interface_addresses", lambda: list(present))
    warnings: list[str] = []
    advertiser = Advertiser(
        node_id=FIRST,
        port=7001,
        fingerprint=FINGERPRINT,
        protocol_version=1,
        interfaces=LOOPBACK,
        warn=warnings.append,
        check_seconds=0.05,
    )
    advertiser.start()
    try:
        assert not advertiser.wait_until_announced(0.2)
        present.append(InterfaceAddress("lo", "127.0.0.1"))
        assert advertiser.wait_until_announced(PATIENCE_SECONDS)
        assert [agent.node_id for agent in find(1)] == [FIRST]
    finally:
        advertiser.stop()
    trouble, end = warnings
    assert trouble.startswith("mDNS is off: this machine has no IPv4 address on lo. ")
    assert end == "This agent is announced by mDNS now, on 127.0.0.1."


# --- interfaces -------------------------------------------------------------------------------------------------------


def test_a_driver_that_says_nothing_of_itself_hides_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd() -> None:
        raise OSError(errno.EIO, "Input/output error")

    expected = interface_addresses()
    monkeypatch.setattr("edgeswarm.discovery.psutil.net_if_stats", odd)
    assert set(interface_addresses()) >= set(expected)
    assert expected


MACHINE = [
    InterfaceAddress("lo", "127.0.0.1"),
    InterfaceAddress("docker0", "172.17.0.1"),
    InterfaceAddress("br-0f1e2d3c4b5a", "172.18.0.1"),
    InterfaceAddress("veth12ab", "169.254.1.1"),
    InterfaceAddress("l4tbr0", "192.168.55.1"),
    InterfaceAddress("usb0", "192.168.55.2"),
    InterfaceAddress("tailscale0", "100.64.0.1"),
    InterfaceAddress("tun0", "10.8.0.1"),
    InterfaceAddress("br0", "10.0.0.5"),
    InterfaceAddress("enP8p1s0", "192.168.1.20"),
    InterfaceAddress("wlan0", "192.168.1.21"),
]


def test_by_itself_it_takes_the_lans_alone() -> None:
    assert choose_addresses(MACHINE) == ("10.0.0.5", "192.168.1.20", "192.168.1.21")


def test_a_list_is_taken_as_it_is() -> None:
    assert choose_addresses(MACHINE, ("lo",)) == ("127.0.0.1",)
    assert choose_addresses(MACHINE, ("tun0", "192.168.1.21")) == ("10.8.0.1", "192.168.1.21")
    assert choose_addresses(MACHINE, ("eth9",)) == ()


def test_this_machine_has_loopback() -> None:
    assert InterfaceAddress("lo", "127.0.0.1") in interface_addresses()


# --- remembering ------------------------------------------------------------------------------------------------------


def test_addresses_are_remembered_and_forgotten(tmp_path: Path) -> None:
    known = KnownAgents(tmp_path)
    assert known.load() == {}
    known.remember(SECOND, ["10.0.0.6:7600"])
    known.remember(FIRST, ["10.0.0.5:7600", "10.1.0.5:7600"])
    known.remember(FIRST, ["10.1.0.5:7600"])
    assert KnownAgents(tmp_path).load() == {FIRST: ("10.1.0.5:7600",), SECOND: ("10.0.0.6:7600",)}
    known.forget(SECOND)
    known.forget(SECOND)
    assert list(known.load()) == [FIRST]
    assert known.load(now=time.time() + 29 * 86_400) != {}
    assert known.load(now=time.time() + 31 * 86_400) == {}, "a board that was retired"
