"""EmulatedLan: an emulated LAN of unequal devices on this machine, for as long as a `with` block or until `remove`.

Device time is processor time: keep the devices' cores together clearly below those of the machine. There is no file of
state: what exists in the kernel, all of it named after the testbed, is the state, so that `python -m bench.testbed`
can look after what another process made.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from edgeswarm.errors import EdgeswarmError, ErrorCode

from . import groups_here, links, metronome, owner, spinner
from .environment import Environment
from .groups import APP, LOAD
from .groups_here import groups
from .links import HUB

# Each device's XDG_RUNTIME_DIR: in memory, and gone when its power goes.
RUNTIME_FOLDERS = Path("/dev/shm/edgeswarm-bed")
SPEED_LOGS = Path("/dev/shm/edgeswarm-bed-speed")


def why_not() -> str:
    """Why this machine can't have a testbed; empty where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for network namespaces and control groups"
    return links.why_not() or groups_here.why_not()


class EmulatedLan:
    """environment: the devices. hub_mbps: rate of the hub's link; None for as fast as it goes."""

    def __init__(self, environment: Environment, *, hub_mbps: float | None = None) -> None:
        self.environment = environment
        self._hub_mbps = hub_mbps
        self.addresses = {device.name: links.address(place) for place, device in enumerate(environment.devices, 1)}

    def __enter__(self) -> EmulatedLan:
        self.create(owned=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove()

    def create(self, *, owned: bool = False) -> None:
        """Removes first what a run that was killed has left. owned: by this process; whoever finds that gone may remove it.

        Raises EdgeswarmError (CONFIG) where the machine can't have one, or has one already.
        """
        problem = why_not()
        if problem:
            raise EdgeswarmError(ErrorCode.CONFIG, f"No testbed here: it {problem}.", "Run it on such a machine.")
        if owner.is_gone():
            remove()
        if links.exists() or groups().nodes():
            raise EdgeswarmError(
                ErrorCode.CONFIG, "A testbed exists already.", "Remove it: python -m bench.testbed down"
            )
        if owned:
            owner.record()
        try:
            links.create_switch()
            for device in self.environment.devices:
                groups().create(device.name, cores=device.cores, memory_bytes=device.memory_bytes)
                links.connect(device.name, self.addresses[device.name], mbps=device.mbps)
            groups().create(HUB, cores=None, memory_bytes=None)
            links.connect(HUB, links.HUB_ADDRESS, mbps=self._hub_mbps)
            links.name_everywhere({**self.addresses, HUB: links.HUB_ADDRESS})
            metronome.start(groups().root, SPEED_LOGS)
            spinner.start(groups().root, groups().spinner)
        except BaseException:
            remove()
            raise

    def start(
        self, node: str, *command: str | Path, environment: Mapping[str, str], log: IO[Any] | None = None
    ) -> subprocess.Popen[str]:
        """A program that runs on a device; its output goes to `log`."""
        return subprocess.Popen(
            on(node, *command),
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.DEVNULL,
            stderr=log or subprocess.DEVNULL,
            env={**environment, **runtime_environment(node)},
            text=True,
        )

    @contextlib.contextmanager
    def at_full_speed(self, nodes: Iterable[str]) -> Iterator[None]:
        """What starts on these devices meanwhile has all of this machine's processors, and is not to be timed."""
        quotas = {node: groups().cores_of(node) for node in nodes}
        try:
            for node in quotas:
                groups().set_cores(node, 0)
            yield
        finally:
            for node, cores in quotas.items():
                groups().set_cores(node, cores or 0)


def remove() -> None:
    """All of it, with what runs there, as far as it ends. May be repeated."""
    try:
        try:
            groups().remove_all()
        finally:
            links.remove_all()
        owner.forget()
    finally:
        shutil.rmtree(SPEED_LOGS, ignore_errors=True)
        shutil.rmtree(RUNTIME_FOLDERS, ignore_errors=True)


def on(node: str, *command: str | Path) -> list[str]:
    """The command line that runs this command on a device, under its own process id: signals and exit code pass.

    It has the device's network, host name, /etc/hosts and /etc/resolv.conf, and sees its own limits: `ip netns exec` would put
    another /sys in their place.
    """
    enter = _entering(node)
    words = [str(word) for word in command]
    if node == HUB:
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *words]
    files = {"/etc/hosts": links.hosts_file(node), "/etc/resolv.conf": links.name_servers_file(node)}
    mounts = "".join(f"[ ! -e {path} ] || mount --bind {own} {path}; " for path, own in files.items())
    dress = f'{mounts}hostname {node}; exec "$@"'
    inside = ["nsenter", f"--net=/var/run/netns/{links.namespace(node)}", "unshare", "--uts", "--mount"]
    return ["sh", "-c", f'{enter}exec "$@"', "sh", *inside, "sh", "-c", dress, "sh", *words]


def runtime_environment(node: str) -> dict[str, str]:
    """What a program on a device finds in its environment. Makes the folder."""
    folder = RUNTIME_FOLDERS / node
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder)}


def power_off(node: str) -> None:
    """A loss of power: everything dies at once, nobody is told, and the link stays cut until it is mended."""
    links.forward(node, on=False)
    groups().kill_all(node)
    shutil.rmtree(RUNTIME_FOLDERS / node, ignore_errors=True)
    if node != HUB:
        links.forget_connections(node)


def disturb(node: str, percent: float) -> None:
    """Burns so much of the device's share of the processor from now on; 0 ends it. Raises ValueError for the hub."""
    cores = groups().cores_of(node)
    for burner in groups().processes_of(node, LOAD):
        os.kill(burner, signal.SIGKILL)
    if percent <= 0:
        return
    if cores is None:
        raise ValueError(f"{node} has no share of the processor that could be burnt")
    groups().set_cores(node, cores * min(percent, 100.0) / 100, part=LOAD)
    burners = math.ceil(cores)
    for _ in range(burners):
        subprocess.Popen(
            ["sh", "-c", f"{_entering(node, LOAD)}while :; do :; done"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    while len(groups().processes_of(node, LOAD)) < burners:
        time.sleep(0.005)


def _entering(node: str, part: str = APP) -> str:
    """For a shell that is to be on the device."""
    return "".join(f"echo $$ > {entry}; " for entry in groups().entries(node, part))


def statistics(node: str) -> dict[str, Any]:
    """CPU seconds, throttled seconds, memory's peak, OOM kills, bytes, since it exists."""
    return {
        "node": node,
        **asdict(groups().usage(node)),
        **{key: value for key, value in links.describe(node).items() if key.endswith("_bytes")},
    }


def describe(node: str) -> dict[str, Any]:
    """A device as it is now."""
    limit = groups().memory_limit(node)
    network = {key: value for key, value in links.describe(node).items() if not key.endswith("_bytes")}
    return {
        "node": node,
        **network,
        "cores": groups().cores_of(node),
        "memory_mib": None if limit is None else limit >> 20,
        "frozen": groups().is_frozen(node),
        "disturbed": bool(groups().processes_of(node, LOAD)),
        "processes": len(groups().processes(node)),
    }
