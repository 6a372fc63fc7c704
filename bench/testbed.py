"""Unequal devices on a LAN, emulated on this machine: a share of a core, a memory limit and a shaped card each.

    hub (this machine)      nx-1, 0.60 core, 2 GiB      nano-1, 0.12 core, 1 GiB
    10.78.0.254             10.78.0.1                    10.78.0.2
         |                       | token bucket, both ends    |
    +----+-----------------------+----------------------------+----+
    |                bridge `lan` in a namespace of its own         |
    +---------------------------------------------------------------+

Needs root, iproute2, nsenter and cgroup v1. All that is made is named es-bed*, exists within the `with` block,
and is removed first where a run that was killed left it behind.
The speeds' ratios are those of published training times of three Jetsons.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "memory")
GROUP = "es-bed"
PREFIX = "es-bed-"
SWITCH = f"{PREFIX}switch"
HUB_CARD = "es-bed-hub"
HUB_ADDRESS = "10.78.0.254"
PERIOD_MICROSECONDS = 10_000  # short, so that a device which has used up its share stands still for less than 10 ms
LEAST_QUOTA_MICROSECONDS = 1_000  # the kernel's own
BURST_SECONDS, LEAST_BURST_BYTES = 0.002, 65_536
_GONE_SECONDS = 10.0


@dataclass(frozen=True)
class Machine:
    """One class of device. cores: share of one core of this machine."""

    cores: float
    memory_mebibytes: int


CLASSES = {"nx": Machine(0.60, 2048), "tx2": Machine(0.30, 2048), "nano": Machine(0.12, 1024)}
#: The environments of the measurements: how many devices of each class.
ENVIRONMENTS: dict[str, dict[str, int]] = {
    "a": {"nano": 5},
    "b": {"tx2": 2, "nano": 3},
    "c": {"nx": 1, "tx2": 2, "nano": 3},
    "d": {"nx": 1, "tx2": 1, "nano": 2},
    "nx": {"nx": 1},
    "nano": {"nano": 1},
}


class Testbed:
    """The devices of one environment. Their names are class and number: nx-1, nano-3."""

    def __init__(self, environment: str, *, megabits_per_second: float) -> None:
        names = [f"{kind}-{n}" for kind, count in ENVIRONMENTS[environment].items() for n in range(1, count + 1)]
        self.addresses = {name: f"10.78.0.{number}" for number, name in enumerate(names, 1)}
        self._megabits_per_second = megabits_per_second

    def __enter__(self) -> Testbed:
        remove()
        try:
            self._make()
        except BaseException:
            remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remove()

    def command(self, device: str, *command: str | Path) -> list[str]:
        """The command line that runs this command on the device's card, though not within its share of the core."""
        # Not `ip netns exec`, which mounts a /sys without control groups: an agent reads its share of the core there.
        return ["nsenter", f"--net=/run/netns/{PREFIX}{device}", *map(str, command)]

    def start(
        self, device: str, *command: str | Path, environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """A program that runs on the device until the testbed is removed; what it says goes to the end of `log`."""

        groups = [str(_group(controller, device) / "cgroup.procs") for controller in CONTROLLERS]
        enter = 'for group in $1 $2 $3; do echo $$ > "$group"; done; shift 3; exec "$@"'
        with log.open("ab") as out:
            return subprocess.Popen(
                ["sh", "-c", enter, "sh", *groups, *self.command(device, *command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(environment),
            )

    def memory_peak_bytes(self, device: str) -> int:
        """Of the device's group, its file pages included."""
        return int((_group("memory", device) / "memory.max_usage_in_bytes").read_text())

    def _make(self) -> None:
        _ip("netns", "add", SWITCH)
        _ip("-n", SWITCH, "link", "add", "lan", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", SWITCH, "link", "set", "lan", "up")
        for name, address in self.addresses.items():
            machine = CLASSES[name.rpartition("-")[0]]
            for controller in CONTROLLERS:
                _group(controller, name).mkdir(parents=True)
            cpu = _group("cpu", name)
            period = max(PERIOD_MICROSECONDS, round(LEAST_QUOTA_MICROSECONDS / machine.cores))
            (cpu / "cpu.cfs_period_us").write_text(str(period))
            (cpu / "cpu.cfs_quota_us").write_text(str(int(machine.cores * period)))
            (_group("memory", name) / "memory.limit_in_bytes").write_text(str(machine.memory_mebibytes << 20))
            _ip("netns", "add", PREFIX + name)
            self._plug(f"p-{name}", "eth0", address, namespace=PREFIX + name)
            _shape(SWITCH, f"p-{name}", self._megabits_per_second)
            _shape(PREFIX + name, "eth0", self._megabits_per_second)
        self._plug("p-hub", HUB_CARD, HUB_ADDRESS, namespace=None)

    @staticmethod
    def _plug(port: str, card: str, address: str, *, namespace: str | None) -> None:
        where = ("-n", namespace) if namespace else ()
        home = namespace or str(os.getpid())
        _ip("-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", card, "netns", home)
        _ip("-n", SWITCH, "link", "set", port, "master", "lan", "up")
        _ip(*where, "addr", "add", f"{address}/24", "dev", card)
        _ip(*where, "link", "set", card, "up")
        if namespace:
            _ip(*where, "link", "set", "lo", "up")


def remove() -> None:
    """All that any testbed has made, its processes first. Safe to repeat."""
    groups = [folder for controller in CONTROLLERS for folder in _folders(_group(controller))]
    for folder in groups:
        _end_processes(folder)
    _ip("link", "del", HUB_CARD, may_fail=True)
    for line in _ip("netns", "list").splitlines():
        if line.startswith(PREFIX):
            _ip("netns", "del", line.split()[0])
    for folder in groups:
        _patiently_remove(folder)


def _end_processes(folder: Path) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline and (found := (folder / "cgroup.procs").read_text().split()):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.05)


def _patiently_remove(folder: Path) -> None:
    """A group stays busy for a moment after its last process."""
    deadline = time.monotonic() + _GONE_SECONDS
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _folders(root: Path) -> Iterator[Path]:
    """Deepest first."""
    if root.is_dir():
        yield from sorted((each for each in root.rglob("*") if each.is_dir()), key=lambda each: -len(each.parts))
        yield root


def _group(controller: str, device: str = "") -> Path:
    return CGROUPS / controller / GROUP / device


def _shape(namespace: str, card: str, megabits_per_second: float) -> None:
    burst = max(LEAST_BURST_BYTES, int(megabits_per_second * 1e6 / 8 * BURST_SECONDS))
    rate = ("rate", f"{megabits_per_second}mbit", "burst", str(burst), "latency", "50ms")
    _run(("tc", "-n", namespace, "qdisc", "add", "dev", card, "root", "tbf", *rate))


def _ip(*arguments: str, may_fail: bool = False) -> str:
    return _run(("ip", *arguments), may_fail=may_fail)


def _run(command: Sequence[str], *, may_fail: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
