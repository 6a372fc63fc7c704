"""What a device may use of this machine: control groups (version 1) of the kernel, one of each kind a device.

cpu/edgeswarm-bed/nano-1          quota: 2.4 ms of every 20
    app                           what runs on the device
    load                          what disturbs it
cpuacct, memory, freezer/edgeswarm-bed/nano-1
cpu/edgeswarm-bed-spinner         beside the devices: what keeps the processors busy (spinner.py)
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from pathlib import Path

from . import spinner

ROOT = Path("/sys/fs/cgroup")
NAME = "edgeswarm-bed"
KINDS = ("cpu", "cpuacct", "memory", "freezer")
SPINNER = ROOT / "cpu" / f"{NAME}-spinner"
# Short, so that a device that has used up its share stalls for less than this (see metronome.py); not shorter, since each turn
# begins with caches that others have filled: a nano of 0.12 core trained MobileNetV2 a tenth quicker with this than with half.
PERIOD_MICROSECONDS = 20_000
LEAST_QUOTA_MICROSECONDS = 1_000  # the kernel's own
_GONE_SECONDS = 10.0


def why_not() -> str:
    """Why this machine can't have such groups; empty where it can."""
    missing = [kind for kind in KINDS if not (ROOT / kind / "cgroup.procs").exists()]
    if missing:
        return f"needs the control groups of version 1; {', '.join(missing)} not found in {ROOT}"
    return ""


def group(kind: str, node: str = "") -> Path:
    return ROOT / kind / NAME / node


def nodes() -> list[str]:
    """The devices that exist, the hub among them."""
    root = group("freezer")
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []


def create(node: str, *, cores: float | None, memory_bytes: int | None) -> None:
    """None: no limit."""
    for kind in KINDS:
        group(kind, node).mkdir(parents=True)
    if cores is not None:
        set_cores(group("cpu", node), cores)
    for part in ("app", "load"):
        (group("cpu", node) / part).mkdir()
    # What disturbs a device gets what it asked for, and the device the rest.
    (group("cpu", node) / "load" / "cpu.shares").write_text("102400")
    if memory_bytes is not None:
        (group("memory", node) / "memory.limit_in_bytes").write_text(str(memory_bytes))


def set_cores(folder: Path, cores: float) -> None:
    """A quota of so many cores, none for 0."""
    (folder / "cpu.cfs_quota_us").write_text("-1")
    if cores <= 0:
        return
    period = min(max(PERIOD_MICROSECONDS, math.ceil(LEAST_QUOTA_MICROSECONDS / cores)), 1_000_000)
    (folder / "cpu.cfs_period_us").write_text(str(period))
    (folder / "cpu.cfs_quota_us").write_text(str(max(LEAST_QUOTA_MICROSECONDS, int(cores * period))))


def cores_of(node: str) -> float | None:
    """The device's quota; None for none."""
    quota, period = (int((group("cpu", node) / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period"))
    return quota / period if quota > 0 else None


def entries(node: str) -> list[Path]:
    """The files into which a process writes its id to be on the device."""
    return [(group(kind, node) / ("app" if kind == "cpu" else "")) / "cgroup.procs" for kind in KINDS]


def processes(node: str) -> list[int]:
    return [int(line) for line in (group("freezer", node) / "cgroup.procs").read_text().split()]


def anonymous_bytes(node: str) -> int:
    """What the device's processes hold, files left out."""
    lines = (group("memory", node) / "memory.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["rss"])


def memory_limit(node: str) -> int:
    """In bytes."""
    return int((group("memory", node) / "memory.limit_in_bytes").read_text())


def limit_memory(node: str, limit_bytes: int) -> None:
    """Waits for what ended just now to be gone, where that is beyond the new limit."""
    for patience in range(50, -1, -1):
        try:
            (group("memory", node) / "memory.limit_in_bytes").write_text(str(limit_bytes))
            return
        except OSError:
            if not patience:
                raise
            time.sleep(0.1)


def freeze(node: str, *, frozen: bool) -> None:
    """Stops all that runs there, or lets it go on; its kernel goes on acknowledging what the network brings."""
    state = group("freezer", node) / "freezer.state"
    state.write_text("FROZEN" if frozen else "THAWED")
    while state.read_text().strip() == "FREEZING":
        time.sleep(0.005)


def kill_all(node: str) -> None:
    """SIGKILL for every process; frozen first, so that none gets away by forking."""
    deadline = time.monotonic() + _GONE_SECONDS
    while running := processes(node):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{node}: the processes {running} don't end")
        (group("freezer", node) / "freezer.state").write_text("FROZEN")
        for process_id in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        freeze(node, frozen=False)
        time.sleep(0.02)
    freeze(node, frozen=False)


def remove_all() -> None:
    """Every device's groups with what runs in them, and the spinner's. May be repeated."""
    for node in nodes():
        kill_all(node)
    for root in filter(Path.is_dir, map(group, KINDS)):
        inside = [entry for entry in root.rglob("*") if entry.is_dir()]
        for folder in sorted([root, *inside], key=lambda entry: -len(entry.parts)):
            remove_group(folder)
    # Last: what had only just been started joins its group late, and leaves it once it sees that the others are gone.
    spinner.stop(SPINNER)
    if SPINNER.is_dir():
        remove_group(SPINNER)


def remove_group(folder: Path) -> None:
    """A group stays busy for a moment after its last process."""
    for patience in range(50, -1, -1):
        try:
            folder.rmdir()
            return
        except OSError:
            if not patience:
                raise
            time.sleep(0.1)
