"""`edgeswarm-agent doctor`: what could keep this device from working, looked at one by one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeswarm.config import AgentSettings, Folders, join_host_and_port
from edgeswarm.discovery import Advertiser, choose_addresses, find_agents, interface_addresses
from edgeswarm.errors import EdgeswarmError
from edgeswarm.own_module import own_lines
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import check_address_is_free
from edgeswarm.wire.version import PROTOCOL_VERSION

from .death import signal_name
from .link_sink import PORT_OFFSET
from .only_one import process_of_agent
from .telemetry.card import read_training_memory
from .telemetry.hardware import guess_accelerator, read_hardware, torch_version
from .telemetry.memory import MEBIBYTE, hidden_limit

# Less than torch alone takes, with a small stage.
_LITTLE_MEMORY_BYTES = 512 * MEBIBYTE
# 2025-01-01: a board without a battery wakes up in 1970, and every certificate is then not valid yet.
_EARLIEST_CLOCK_SECONDS = 1735689600
_TORCH_SECONDS = 60.0
_MDNS_SECONDS = 4.0


@dataclass(frozen=True)
class Finding:
    """One check: level is "ok", "warning" (works, with a limit) or "problem" (does not work)."""

    check: str
    level: str
    message: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def examine(settings: AgentSettings, folders: Folders) -> Iterator[Finding]:
    """The checks, one after the other; some take seconds."""
    yield _identity(folders)
    yield _clock()
    yield _port(settings, folders)
    yield _mdns(settings)
    yield _torch(settings)
    yield _memory(settings)


def _checked(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check, "ok", look())
    except EdgeswarmError as error:
        return Finding(check, "problem", error.message, error.remedy)


def _identity(folders: Folders) -> Finding:
    def look() -> str:
        identity = Identity.load(folders.agent_dir, role=Role.AGENT)
        return f"{identity.node_id} of cluster {identity.cluster_fingerprint[:16]}"

    return _checked("identity", look)


def _clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < _EARLIEST_CLOCK_SECONDS:
        remedy = "Set it, or switch on its synchronisation: `timedatectl set-ntp true`."
        return Finding("clock", "problem", f"The clock says {now}: certificates aren't valid then.", remedy)
    return Finding("clock", "ok", now)


def _port(settings: AgentSettings, folders: Folders) -> Finding:
    """Binds all as the daemon and its worker do, unless this folder's agent runs, which has them."""
    if (process := process_of_agent(folders.agent_dir)) is not None:
        return Finding("ports", "ok", f"the agent of this folder runs (process {process})")

    ports = (settings.port, settings.effective_worker_port)

    def look(*wanted: int) -> Finding:
        def bind() -> str:
            for port in wanted:
                check_address_is_free(join_host_and_port(settings.listen_address, port))
            return "any free port is taken"

        return _checked("ports", bind)

    found = look(*ports)
    if found.level != "ok" or not all(ports):
        return found
    streams = (ports[1] + 1, ports[0] + PORT_OFFSET)  # of the worker, and of who measures a link
    taken = [str(port) for port in streams if look(port).level != "ok"]
    if taken:
        message = f"{' and '.join(taken)} can't be had: any free port is taken in place of it, which a firewall may not let in."
        return Finding("ports", "warning", message, "End what listens there, or choose others: --port, --worker-port.")
    return Finding("ports", "ok", f"{', '.join(str(port) for port in sorted({*ports, *streams}))} are free")


def _mdns(settings: AgentSettings) -> Finding:
    """Announces a name for a moment, where `run` would announce its own, and looks whether it can be found from here."""
    by_hand = "Give this device's address to the coordinator: `--peer HOST:PORT`."
    if not settings.advertise:
        return Finding("mdns", "ok", "not announced", by_hand)
    interfaces = settings.effective_interfaces
    addresses = choose_addresses(interface_addresses(), interfaces)
    if not addresses:
        return Finding("mdns", "warning", "There is no network interface for mDNS.", by_hand)
    warnings: list[str] = []
    fingerprint = os.urandom(32).hex()
    advertiser = Advertiser(
        node_id="doctor-" + fingerprint[:6],
        port=settings.port or 1,
        fingerprint=fingerprint,
        protocol_version=PROTOCOL_VERSION,
        interfaces=interfaces,
        warn=warnings.append,
    )
    advertiser.start()
    try:
        found = find_agents(
            fingerprint,
            timeout_seconds=_MDNS_SECONDS,
            interfaces=interfaces,
            enough=bool,
            warn=warnings.append,
        )
    finally:
        advertiser.stop()
    if found:
        return Finding("mdns", "ok", f"announcing works on {', '.join(addresses)}")
    problem = warnings[0] if warnings else "What was announced could not be found again: multicast is filtered."
    return Finding("mdns", "warning", problem, by_hand)


def _torch(settings: AgentSettings) -> Finding:
    """In a child process: a torch that is built for another processor dies of SIGILL at its first computation."""
    program = (
        "import torch; a = torch.ones(64, 64); assert (a @ a).sum() == 64**3; "
        "print(torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu')"
    )
    remedy = "Install PyTorch for this board: https://pytorch.org, on a Jetson NVIDIA's own build."
    try:
        child = subprocess.run(own_lines(program), capture_output=True, text=True, timeout=_TORCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding("torch", "problem", f"Importing torch took longer than {_TORCH_SECONDS:.0f} s.", remedy)
    if child.returncode == 0:
        version, accelerator = child.stdout.split()[-2:]
        return _computes(settings, version=version, accelerator=accelerator, remedy=remedy)
    if child.returncode < 0:
        return Finding("torch", "problem", f"A small computation died of {signal_name(-child.returncode)}.", remedy)
    last = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    return Finding("torch", "problem", last[0], remedy)


def _computes(settings: AgentSettings, *, version: str, accelerator: str, remedy: str) -> Finding:
    """On what torch computes. A card that the system has and torch can't use is most likely not meant to be left alone."""
    hardware = read_hardware(slow_down=settings.slow_down, threads=settings.threads, accelerator=accelerator)
    message = f"{version}, {hardware.threads} threads, {hardware.values.get('card', accelerator)}"
    if accelerator == "cpu" and guess_accelerator(torch_version()) == "cuda":
        return Finding("torch", "warning", f"{message}: this PyTorch can't use the graphics card", remedy)
    return Finding("torch", "ok", message)


def _memory(settings: AgentSettings) -> Finding:
    memory = read_training_memory(guess_accelerator(torch_version()))
    budget = memory.budget(settings.memory_limit_bytes)
    message = f"{budget // MEBIBYTE} MiB of {memory.total // MEBIBYTE} MiB can be used for training"
    hidden = hidden_limit() if settings.memory_limit_bytes is None else ""
    if hidden:
        return Finding("memory", "warning", f"{message}. {hidden}", "Give the limit with --memory, as in 1GiB.")
    if budget < _LITTLE_MEMORY_BYTES:
        return Finding("memory", "warning", message, "End other programs; a desktop alone takes a gigabyte.")
    return Finding("memory", "ok", message)
