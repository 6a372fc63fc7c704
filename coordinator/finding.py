"""Finding the agents of our cluster: mDNS, addresses given by hand, addresses remembered.

Every address is dialed at once:

    by hand     host:port ── handshake tells the node id ─┐
    remembered  node id at host:port ─────────────────────┼── Describe ── sorted out ── AgentLinks
    mDNS        node id at host:port, host:port ──────────┘               (one for each node id)
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgeswarm.config import Folders, host_and_port, join_host_and_port
from edgeswarm.discovery import FoundAgent, KnownAgents, find_agents
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import node_id_of
from edgeswarm.wire.version import PROTOCOL_VERSION

from .agents import AgentLink
from .background import Task
from .device import resolve_names, short_name
from .options import DiscoveryOptions

CLOCK_LIMIT_SECONDS = 5.0
DIAL_SECONDS = 3.0

Source = Literal["addresses", "mdns", "remembered"]
_PREFERENCE: tuple[Source, ...] = ("addresses", "mdns", "remembered")


@dataclass(frozen=True)
class Answer:
    """An agent that answered, and how we knew its address. announcement: which one of mDNS named it, empty for other sources."""

    link: AgentLink
    source: Source
    announcement: str = ""

    @property
    def box(self) -> str:
        """Differs between two boxes that carry one node id; empty where nothing tells."""
        return self.link.instance or self.announcement


@dataclass(frozen=True)
class Silence:
    """An address that did not answer as it should. node_id: empty where it isn't known."""

    node_id: str
    address: str
    source: Source
    error: EdgeswarmError


@dataclass(frozen=True)
class Found:
    """links: one for each usable device, by node id, in its order. how: where they were found.

    left_out: why others that answered can't be used, by node id.
    """

    links: dict[str, AgentLink]
    how: Source
    left_out: dict[str, EdgeswarmError] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """chosen: one answer for each node id that can be used, in their order. left_out: as in Found."""

    chosen: list[Answer]
    left_out: dict[str, EdgeswarmError]
    warnings: list[str]


class Finder:
    """One search. warn: told of everything that is odd but stops nothing."""

    def __init__(
        self, options: DiscoveryOptions, *, identity: Identity, folders: Folders, warn: Callable[[str], None]
    ) -> None:
        self._options = options
        self._identity = identity
        self._known = KnownAgents(folders.state_dir)
        self._warn = warn

    def find(self, *, wanted: Sequence[str] = ()) -> Found:
        """All agents that answer and speak our version.

        wanted: names or node ids; the search ends as soon as they are announced.
        Raises EdgeswarmError where there is none: NO_DEVICES, or why those that answered can't be used.
        """
        dialing: dict[tuple[str, str], Task[Answer | Silence]] = {}

        def dial(address: str, node_id: str, source: Source, announcement: str = "") -> None:
            if (address, node_id) not in dialing:
                dialing[address, node_id] = Task(
                    lambda: self._dial(address, node_id, source, announcement), name=f"dial {address}"
                )

        for address in self._options.peers:
            dial(address, "", "addresses")
        for node_id, addresses in self._remembered().items():
            for address in addresses:
                dial(address, node_id, "remembered")
        if self._options.mdns:
            for number, agent in enumerate(self._announced(wanted)):
                for address in agent.targets():
                    dial(address, agent.node_id, "mdns", f"announcement {number}")
        outcomes = [task.result() for task in dialing.values()]
        return self._sorted_out(outcomes, wanted)

    def _remembered(self) -> dict[str, tuple[str, ...]]:
        try:
            return self._known.load()
        except (EdgeswarmError, OSError) as error:
            self._warn(f"The remembered addresses can't be used: {error}")
            return {}

    def _remember(self, node_id: str, address: str) -> None:
        """Nothing depends on it: a full disk stops no search."""
        try:
            self._known.remember(node_id, [address])
        except (EdgeswarmError, OSError) as error:
            self._warn(f"The address of {node_id} can't be remembered: {error}")

    def _forget(self, node_id: str) -> None:
        try:
            self._known.forget(node_id)
        except (EdgeswarmError, OSError) as error:
            self._warn(f"The address of {node_id} can't be forgotten: {error}")

    def _announced(self, wanted: Sequence[str]) -> list[FoundAgent]:
        def enough(found: Sequence[FoundAgent]) -> bool:
            names = {agent.node_id for agent in found} | {short_name(agent.node_id) for agent in found}
            return bool(wanted) and names.issuperset(wanted)

        return find_agents(
            self._identity.cluster_fingerprint,
            timeout_seconds=self._options.wait_seconds,
            interfaces=self._options.interfaces,
            enough=enough,
            warn=self._warn,
        )

    def _dial(self, address: str, node_id: str, source: Source, announcement: str) -> Answer | Silence:
        try:
            # Other devices are told this address, and may know no such name; nor does gRPC ask all that this machine asks.
            place = in_numbers(address, timeout_seconds=DIAL_SECONDS) if source == "addresses" else address
            expected = node_id or node_id_of(place, identity=self._identity, timeout_seconds=DIAL_SECONDS)
            return Answer(AgentLink.open(place, node_id=expected, identity=self._identity), source, announcement)
        except EdgeswarmError as error:
            return Silence(node_id, address, source, error)

    def _sorted_out(self, outcomes: Sequence[Answer | Silence], wanted: Sequence[str]) -> Found:
        answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
        silences = [outcome for outcome in outcomes if isinstance(outcome, Silence)]
        choice = choose(answers)
        chosen = choice.chosen
        left_out = [
            f"{node_id} is left out: {error}"
            for node_id, error in choice.left_out.items()
            if chosen and not any(_is_called(node_id, name) for name in wanted)  # else it is the error that ends this
        ]
        for message in (
            *left_out,
            *choice.warnings,
            *silence_warnings(silences, reached={a.link.node_id for a in answers} | replaced(answers, silences)),
        ):
            self._warn(message)
        kept = {id(answer.link) for answer in chosen}
        for answer in answers:
            if id(answer.link) not in kept:
                answer.link.close()
        if not chosen:
            raise _nothing_found(choice, silences)
        for answer in chosen:
            self._remember(answer.link.node_id, answer.link.address)
        for node_id in replaced(answers, silences):
            self._forget(node_id)
        sources = {answer.source for answer in chosen}
        return Found(
            links={answer.link.node_id: answer.link for answer in chosen},
            how=next(s for s in ("mdns", "addresses", "remembered") if s in sources),
            left_out=choice.left_out,
        )


def choose(answers: Sequence[Answer]) -> Choice:
    """One answer for each node id that can be used; why the others can't. Pure."""
    choice = Choice([], {}, [])
    for node_id in sorted({answer.link.node_id for answer in answers}):
        mine = [answer for answer in answers if answer.link.node_id == node_id]
        # Answers come in the order in which they were asked for. An agent that was started anew meanwhile is one box.
        at = {answer.link.address: answer.box for answer in mine if answer.box}
        if len(set(at.values())) > 1:
            choice.left_out[node_id] = _cloned(node_id, sorted(at))
            continue
        mine = [answer for answer in mine if answer.box in ("", *at.values())]
        best = min(mine, key=lambda answer: (_PREFERENCE.index(answer.source), answer.link.round_trip_seconds))
        if best.link.protocol_version != PROTOCOL_VERSION:
            choice.left_out[node_id] = _version_differs(best.link)
            continue
        offset = best.link.device.clock_offset_seconds
        if abs(offset) > CLOCK_LIMIT_SECONDS:
            choice.warnings.append(
                f"The clock of {node_id} is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this machine's. "
                "Set it (timedatectl set-ntp true): certificates depend on it."
            )
        choice.chosen.append(best)
    return choice


def replaced(answers: Sequence[Answer], silences: Sequence[Silence]) -> set[str]:
    """Devices that are remembered at an address where another one of the cluster answers now, and that don't answer. Pure."""
    there = {answer.link.address: answer.link.node_id for answer in answers}
    found = {
        silence.node_id
        for silence in silences
        if silence.source == "remembered" and there.get(silence.address, silence.node_id) != silence.node_id
    }
    return found - set(there.values())


def in_numbers(address: str, *, timeout_seconds: float) -> str:
    """A "host:port" with the host that answers under its name in numbers; as it is where none does."""
    host, port = host_and_port(address)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return address
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            numbers = connection.getpeername()[0]
            # One of a link (fe80::1%eth0) is none for another device.
            return address if "%" in numbers else join_host_and_port(numbers, port)
    except OSError:
        return address


def silence_warnings(silences: Sequence[Silence], *, reached: set[str]) -> list[str]:
    """A warning for each device or address that can't be reached in any way. Pure."""
    warnings: dict[str, str] = {}
    for silence in silences:
        if silence.node_id in reached:
            continue  # another of its addresses answered
        if silence.source == "remembered":
            text = f"{silence.node_id} does not answer where it was last time ({silence.address})."
        else:
            text = str(silence.error)
        warnings.setdefault(silence.node_id or silence.address, text)
    return list(warnings.values())


def selected(found: Found, names: Sequence[str]) -> dict[str, AgentLink]:
    """The links of the devices with these names, all of them for no names.

    Raises EdgeswarmError: NO_DEVICES, or why a device of that name can't be used.
    """
    if not names:
        return dict(found.links)
    for name in names:
        if not any(_is_called(node_id, name) for node_id in found.links):
            reason = next((error for node_id, error in found.left_out.items() if _is_called(node_id, name)), None)
            if reason is not None:
                raise reason
    return {node_id: found.links[node_id] for node_id in resolve_names(names, tuple(found.links)).values()}


def _is_called(node_id: str, name: str) -> bool:
    return name in (node_id, short_name(node_id))


def _version_differs(link: AgentLink) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.VERSION_DIFFERS,
        f"{link.node_id} runs edgeswarm {link.device.version or '?'} (protocol {link.protocol_version}), "
        f"this machine speaks protocol {PROTOCOL_VERSION}.",
        f"Install the same version of edgeswarm on both, and start the agent on {link.node_id} again, which goes on with the old "
        "one.",
    )


def _cloned(node_id: str, addresses: Sequence[str]) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.CLONED_DEVICE,
        f"Two devices call themselves {node_id}: at {' and at '.join(addresses)}.",
        "Was a disk or SD card cloned? On one of them remove the agent's folder (its identity and its name are in it), and "
        "join it again with `edgeswarm token create` and `edgeswarm-agent join`.",
    )


def _nothing_found(choice: Choice, silences: Sequence[Silence]) -> EdgeswarmError:
    if choice.left_out:
        return next(iter(choice.left_out.values()))
    refused = [silence.error for silence in silences if silence.error.code is ErrorCode.TRUST]
    if refused:
        return refused[0]
    tried = ", ".join(sorted({silence.address for silence in silences}))
    return EdgeswarmError(
        ErrorCode.NO_DEVICES,
        f"No device was found{f' (tried {tried})' if tried else ''}.",
        "Start `edgeswarm-agent run` on each device; where mDNS doesn't reach it, give its address: --peer HOST:7600.",
    )
