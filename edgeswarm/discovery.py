"""Finding agents on the local network by mDNS (`_edgeswarm._tcp.local.`): a help, never a need.

An agent announces its node id, its port and addresses, the version of the wire and the first 16 hex digits of its
cluster's fingerprint; nothing secret, and nobody is trusted for what it announces. mDNS knows nothing of liveness
(records live 75 minutes), so it is for finding only.
Whatever goes wrong here is a warning through a callback; addresses by hand
(`--peer host:port`) and the remembered ones (`KnownAgents`) always work.
IPv4 only: what every LAN of small boxes has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import re
import secrets
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil
import zeroconf

# The package has them, too, but keeps them out of its types.
from zeroconf._dns import DNSAddress, DNSQuestion, DNSService
from zeroconf._protocol.outgoing import DNSOutgoing

from .config import join_host_and_port
from .security.files import locked_json, make_private_folder
from .security.node_id import is_node_id

SERVICE_TYPE = "_edgeswarm._tcp.local."
FINGERPRINT_PREFIX_LENGTH = 16
ADDRESS_CHECK_SECONDS = 10.0

# Of one announcement and in one search: each is dialed, and anybody on the network may announce thousands.
_MOST_ADDRESSES = 8
_MOST_FOUND = 256

_LOOK_SECONDS = 0.25  # how often a search looks at what has come
_TYPE_A, _TYPE_SRV, _CLASS_IN = 1, 33, 1  # RFC 1035 and 2782
_FLAGS_QUERY = 0  # RFC 1035, 4.1.1
_MOST_DOUBLES = 9  # of one node id that are looked for
_IPV4_BYTES = 4
# Answers to everybody: one to the asker's address and port would reach any of the programs that share port 5353 there.
_MULTICAST = zeroconf.DNSQuestionType.QM

# Interfaces that lead nowhere a training should go: containers, virtual machines, tunnels, USB gadgets (the l4tbr0 and
# rndis0 of a Jetson), and the kernel's helpers. A bridge that a person made (br0) is a LAN and stays.
_NOT_A_LAN = re.compile(
    r"lo\d*|docker.*|br-.*|veth.*|virbr.*|vnet.*|lxc.*|lxd.*|podman.*|cni.*|flannel.*|cali.*|vmnet.*|vboxnet.*"
    r"|usb\d.*|rndis.*|l4tbr.*|tun.*|tap.*|wg.*|tailscale.*|zt.*|ppp.*|ipsec.*|gre.*|sit.*|ifb.*|dummy.*|can\d.*"
)

WarningCallback = Callable[[str], None]
_log = logging.getLogger(__name__)


def _log_warning(message: str) -> None:
    _log.warning("%s", message)


# --- interfaces -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InterfaceAddress:
    """An IPv4 address of this machine and the interface that it belongs to."""

    interface: str
    address: str


def interface_addresses() -> list[InterfaceAddress]:
    """The IPv4 addresses of this machine's interfaces that are up; of all where a driver doesn't let itself be asked."""
    by_name = psutil.net_if_addrs()
    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    except OSError:  # it asks for an interface's speed, too, and a driver's odd answer is an error for all of them
        up = set(by_name)
    return [
        InterfaceAddress(name, entry.address)
        for name, entries in sorted(by_name.items())
        if name in up
        for entry in entries
        if entry.family == socket.AF_INET
    ]


def choose_addresses(available: Iterable[InterfaceAddress], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The addresses to announce and to look on, in the order of `available`.

    wanted: interface names or addresses; exactly these, also loopback (a cluster on one machine asks for "lo").
    Without it: every interface but loopback and those of containers, USB gadgets and tunnels.
    """
    if wanted:
        return tuple(entry.address for entry in available if entry.interface in wanted or entry.address in wanted)
    return tuple(
        entry.address
        for entry in available
        if _NOT_A_LAN.fullmatch(entry.interface) is None and not ipaddress.ip_address(entry.address).is_loopback
    )


# --- what is found ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FoundAgent:
    """One announcement of an agent. Two with the same node id are two boxes: see `duplicated_node_ids`.

    addresses: IPv4, all that it announced (a browser dials each and keeps the one that answers as this node id).
    port: of its control service. protocol_version: of the wire that it speaks.
    """

    node_id: str
    addresses: tuple[str, ...]
    port: int
    protocol_version: int

    def targets(self) -> tuple[str, ...]:
        """The addresses as "host:port"."""
        return tuple(join_host_and_port(address, self.port) for address in self.addresses)


def duplicated_node_ids(found: Iterable[FoundAgent]) -> dict[str, tuple[FoundAgent, ...]]:
    """Node ids that were announced from more than one place (a cloned SD card), with all their announcements."""
    places: defaultdict[str, list[FoundAgent]] = defaultdict(list)
    for agent in found:
        places[agent.node_id].append(agent)
    return {node_id: tuple(agents) for node_id, agents in places.items() if len(agents) > 1}


def _agents_of(network: zeroconf.Zeroconf, info: zeroconf.ServiceInfo, fingerprint_prefix: str) -> list[FoundAgent]:
    """The agents behind one instance name: none where it is of another cluster or not as we write it, two for a clone.

    Two boxes with one node id announce the same instance name, with host names of their own. Both answers lie in the
    cache then; `info` shows only the newest.
    """
    text = info.decoded_properties
    node_id, version = text.get("node") or "", text.get("version") or ""
    if text.get("cluster") != fingerprint_prefix or not is_node_id(node_id):
        return []
    if not (version.isascii() and version.isdigit()):
        return []
    agents = []
    for service in network.cache.get_all_by_details(info.name, _TYPE_SRV, _CLASS_IN):
        assert isinstance(service, DNSService)
        records = network.cache.get_all_by_details(service.server, _TYPE_A, _CLASS_IN)
        # A packet may end within an address, which is a shorter one then.
        whole = [r.address for r in records if isinstance(r, DNSAddress) and len(r.address) == _IPV4_BYTES]
        addresses = sorted({str(ipaddress.IPv4Address(address)) for address in whole})[:_MOST_ADDRESSES]
        if addresses and service.port:
            agents.append(FoundAgent(node_id, tuple(addresses), service.port, int(version)))
    return agents


def find_agents(
    fingerprint: str,
    *,
    timeout_seconds: float,
    interfaces: Sequence[str] = (),
    enough: Callable[[Sequence[FoundAgent]], bool] | None = None,
    warn: WarningCallback = _log_warning,
) -> list[FoundAgent]:
    """The agents of one cluster that answer within `timeout_seconds`, sorted by node id.

    fingerprint: of the cluster (its first 16 hex digits count). interfaces: see `choose_addresses`.
    enough: looked at after each new agent; True ends the search before its time.
    warn: told where mDNS doesn't work here; the result is then empty.
    """
    prefix = fingerprint[:FINGERPRINT_PREFIX_LENGTH]
    addresses = choose_addresses(interface_addresses(), interfaces)
    if not addresses:
        warn(f"{_no_interface(interfaces)} Give the agents' addresses with --peer.")
        return []
    deadline = time.monotonic() + timeout_seconds
    found: list[FoundAgent] = []
    try:
        with zeroconf.Zeroconf(interfaces=list(addresses)) as network:
            seen = _SeenNames()
            handlers = [seen.on_change]
            browser = zeroconf.ServiceBrowser(network, SERVICE_TYPE, handlers=handlers, question_type=_MULTICAST)
            infos: dict[str, zeroconf.ServiceInfo] = {}
            try:
                while True:
                    remaining_seconds = max(0.0, deadline - time.monotonic())
                    for name in seen.wait(min(remaining_seconds, _LOOK_SECONDS)):
                        # Anybody on the network may say that one of another type is one of ours, or what is no name at all.
                        with contextlib.suppress(zeroconf.Error, ValueError):
                            infos[name] = zeroconf.ServiceInfo(SERVICE_TYPE, name)
                            # Most answers carry everything; what is missing is asked for.
                            patience_ms = 1000 * min(1.0, max(0.001, deadline - time.monotonic()))
                            infos[name].request(network, patience_ms, _MULTICAST)
                    agents = {agent for info in infos.values() for agent in _agents_of(network, info, prefix)}
                    found = sorted(agents, key=lambda agent: (agent.node_id, agent.addresses, agent.port))[:_MOST_FOUND]
                    if remaining_seconds == 0 or (enough is not None and enough(found)):
                        break
            finally:
                browser.cancel()
    except (OSError, zeroconf.Error) as error:
        warn(f"Looking for agents by mDNS doesn't work on this machine ({error!r}). Give their addresses with --peer.")
    return found


class _SeenNames:
    """The instance names that the browser's thread has seen appear or change, for the thread that waits for them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._names: list[str] = []

    def on_change(
        self, zeroconf: zeroconf.Zeroconf, service_type: str, name: str, state_change: zeroconf.ServiceStateChange
    ) -> None:
        if state_change.name == "Removed":
            return
        with self._condition:
            if name not in self._names:
                self._names.append(name)
            self._condition.notify()

    def wait(self, timeout_seconds: float) -> list[str]:
        with self._condition:
            self._condition.wait_for(lambda: bool(self._names), timeout=timeout_seconds)
            names, self._names = self._names, []
        return names


def _no_interface(interfaces: Sequence[str]) -> str:
    if interfaces:
        return f"mDNS is off: this machine has no IPv4 address on {', '.join(interfaces)}."
    return "mDNS is off: this machine has no IPv4 address on a LAN (`interfaces` names one that isn't taken for such)."


# --- announcing -------------------------------------------------------------------------------------------------------


class Advertiser:
    """Announces an agent until it is stopped, in a thread of its own; again when the machine's addresses change.

    A network that is down at the start, or whose address comes late, is looked at again every `check_seconds`.
    warn: told once of each new trouble, also that another box announces the same node id, and of the end of one.
    """

    def __init__(
        self,
        *,
        node_id: str,
        port: int,
        fingerprint: str,
        protocol_version: int,
        interfaces: Sequence[str] = (),
        warn: WarningCallback = _log_warning,
        check_seconds: float = ADDRESS_CHECK_SECONDS,
    ) -> None:
        self._node_id = node_id
        self._name = f"{node_id}.{SERVICE_TYPE}"
        self._double = (
            f"Another agent on this network announces the node id {node_id} too. Are two started with one folder on this "
            "machine? End one. If another device's disk or SD card was cloned from this one, remove the agent's folder "
            "there and join it again."
        )
        self._port = port
        self._properties = {
            "version": str(protocol_version),
            "node": node_id,
            "cluster": fingerprint[:FINGERPRINT_PREFIX_LENGTH],
        }
        self._interfaces = tuple(interfaces)
        self._warn = warn
        self._last_warning = ""
        self._check_seconds = check_seconds
        # A host name of our own for the address records: those of two boxes with one node id must not run together.
        self._host = f"{node_id}-{secrets.token_hex(3)}.local."
        self._network: zeroconf.Zeroconf | None = None
        self._addresses: tuple[str, ...] = ()
        self._announced = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mdns-advertiser", daemon=True)

    def start(self) -> None:
        """Begin; returns at once (the announcement itself takes about a second)."""
        self._thread.start()

    def wait_until_announced(self, timeout_seconds: float) -> bool:
        """Whether the announcement is out, waited for at most that long."""
        return self._announced.wait(timeout_seconds)

    def stop(self) -> None:
        """Take the announcement back and end the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            addresses = choose_addresses(interface_addresses(), self._interfaces)
            if addresses != self._addresses or self._network is None:
                self._withdraw()
                self._announce(addresses)
            elif self._has_a_double(self._network):
                self._trouble(self._double)
            if self._stopping.wait(self._check_seconds):
                break
        self._withdraw()

    def _announce(self, addresses: tuple[str, ...]) -> None:
        if not addresses:
            again = f"It is looked for again every {self._check_seconds:g} s; --peer reaches this agent without."
            self._trouble(f"{_no_interface(self._interfaces)} {again}")
            return
        info = zeroconf.ServiceInfo(
            SERVICE_TYPE,
            self._name,
            port=self._port,
            properties=self._properties,
            server=self._host,
            parsed_addresses=list(addresses),
        )
        try:
            self._network = zeroconf.Zeroconf(interfaces=list(addresses))
            self._network.register_service(info, allow_name_change=True)
            self._network.send(_question(self._name))
        except (OSError, zeroconf.Error) as error:
            self._withdraw()
            self._trouble(f"Announcing this agent by mDNS doesn't work ({error!r}). Reach it by its address (--peer).")
            return
        self._addresses = addresses
        self._announced.set()
        if info.name != self._name:
            self._trouble(self._double)
        elif self._last_warning:
            self._last_warning = ""
            self._warn(f"This agent is announced by mDNS now, on {', '.join(addresses)}.")

    def _has_a_double(self, network: zeroconf.Zeroconf) -> bool:
        """Whether somebody else was heard to announce our name, or one that zeroconf takes where that name is taken already.

        Who comes later asks for the name before it announces it, and is answered at its address and port. Of several programs
        that share these any one gets that answer, so that later ones may announce the same name, or another.
        """
        names = (self._name, *(f"{self._node_id}-{number}.{SERVICE_TYPE}" for number in range(2, _MOST_DOUBLES + 1)))
        records = (record for name in names for record in network.cache.get_all_by_details(name, _TYPE_SRV, _CLASS_IN))
        return any(isinstance(record, DNSService) and record.server != self._host for record in records)

    def _withdraw(self) -> None:
        network, self._network = self._network, None
        self._addresses = ()
        self._announced.clear()
        if network is None:
            return
        try:
            network.close()
        except (OSError, zeroconf.Error) as error:  # the interface is gone: nobody hears the goodbye
            _log.info("mDNS: could not say goodbye: %r", error)

    def _trouble(self, message: str) -> None:
        if message != self._last_warning:
            self._last_warning = message
            self._warn(message)


def _question(name: str) -> DNSOutgoing:
    """Who announces this name? Whoever does tells everybody, as it does when it begins."""
    question = DNSOutgoing(_FLAGS_QUERY)
    question.add_question(DNSQuestion(name, _TYPE_SRV, _CLASS_IN))
    return question


# --- remembering ------------------------------------------------------------------------------------------------------


KEPT_SECONDS = 30 * 86_400.0


class KnownAgents:
    """The addresses under which agents were last reached, in a folder: found again where mDNS is silent.

    Layout of the file: {node id: {"addresses": ["host:port", ...], "seen": seconds since 1970}}
    One that wasn't reached for KEPT_SECONDS is no more known: boards are retired, and get other names.
    """

    FILE_NAME = "known-agents.json"

    def __init__(self, folder: Path) -> None:
        self._path = make_private_folder(folder) / self.FILE_NAME

    def load(self, *, now: float | None = None) -> dict[str, tuple[str, ...]]:
        """node id -> addresses ("host:port"), the last that worked first; raises EdgeswarmError (CONFIG) if damaged."""
        oldest = (time.time() if now is None else now) - KEPT_SECONDS
        with locked_json(self._path) as known:
            document = dict(known)
        return {
            node_id: tuple(str(address) for address in record.get("addresses", ()))
            for node_id, record in sorted(document.items())
            if is_node_id(node_id) and isinstance(record, dict) and _seen_seconds(record) >= oldest
        }

    def remember(self, node_id: str, addresses: Sequence[str]) -> None:
        """Keep the addresses ("host:port") under which this agent was reached, in place of older ones."""
        with locked_json(self._path) as known:
            known[node_id] = {"addresses": list(addresses), "seen": time.time()}

    def forget(self, node_id: str) -> None:
        """Forget an agent; one that isn't known is forgotten already."""
        with locked_json(self._path) as known:
            known.pop(node_id, None)


def _seen_seconds(record: Mapping[str, object]) -> float:
    """When it was reached; never where nothing sound says when."""
    seen = record.get("seen")
    return float(seen) if isinstance(seen, int | float) else 0.0
