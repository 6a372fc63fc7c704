"""How much memory training may use on this device, and whether the kernel killed for lack of it.

    budget = min(MemAvailable, cgroup limit - cgroup use, --memory) - reserve

Swap isn't counted: a worker that swaps is slower than a worker on another device. Page cache that the kernel gives back
under pressure counts as free, in the group as in MemAvailable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .files import ROOT, cgroup_folders, hidden_cgroup, read_counters, read_text, read_whole, whole

MEBIBYTE = 1024 * 1024
# A cgroup without a limit says so by a number near 2^63 (version 1).
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Memory:
    """In bytes. available: what is free now, in this process's control group and on the device."""

    total: int
    available: int

    def budget(self, limit: int | None = None) -> int:
        """What training may use now, at most `limit`: available less a reserve, which is for the rest of the system."""
        budget = max(0, self.available - reserve_bytes(self.total))
        return budget if limit is None else min(budget, limit)


def reserve_bytes(total: int) -> int:
    """A sixteenth of the device's memory, but 128 MiB at least and 512 MiB at most."""
    return min(512 * MEBIBYTE, max(128 * MEBIBYTE, total // 16))


def read_memory(root: Path = ROOT) -> Memory:
    """What the device has and what is free, seen from this process's control group."""
    device = _meminfo(root)
    total = device.get("MemTotal", 0)
    # Kernels before 3.14 have no MemAvailable; some vendors' boards ran those for long.
    available = device.get("MemAvailable", device.get("MemFree", 0) + device.get("Cached", 0))
    for version, folder in cgroup_folders(root, "memory"):
        limit, use = _limit_and_use(version, folder)
        if limit is not None and limit < _NO_LIMIT:
            total = min(total, limit)
            available = min(available, max(0, limit - use))
    return Memory(total=total, available=available)


def hidden_limit(root: Path = ROOT) -> str:
    """A warning where this process's control group may have a limit that can't be read; empty elsewhere."""
    group = hidden_cgroup(root, "memory")
    if not group:
        return ""
    return (
        f"This process is in the control group {group}, whose memory limit can't be read here: /sys/fs/cgroup is empty."
    )


def oom_kills(root: Path = ROOT) -> int:
    """How often the kernel killed a process of this control group for lack of memory; of the whole device without one.

    It only grows: compare the number before and after.
    """
    for version, folder in cgroup_folders(root, "memory"):
        counters = read_counters(folder / ("memory.events" if version == 2 else "memory.oom_control"))
        if "oom_kill" in counters:
            return counters["oom_kill"]
    return read_counters(root / "proc/vmstat").get("oom_kill", 0)


def _limit_and_use(version: int, folder: Path) -> tuple[int | None, int]:
    """Bytes; a limit of None where the group has none. Inactive file pages are given back when somebody needs them."""
    if version == 2:
        # Beyond the lower of the two the kernel slows a process down until it stands still; it isn't killed, and nobody is told.
        limits = (read_whole(folder / name) for name in ("memory.max", "memory.high"))
        limit = min((each for each in limits if each is not None), default=None)
        use = read_whole(folder / "memory.current")
        reclaimable = read_counters(folder / "memory.stat").get("inactive_file", 0)
    else:
        limit, use = read_whole(folder / "memory.limit_in_bytes"), read_whole(folder / "memory.usage_in_bytes")
        reclaimable = read_counters(folder / "memory.stat").get("total_inactive_file", 0)
    return limit, max(0, (use or 0) - reclaimable)


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes (it speaks of kB and means KiB)."""
    values: dict[str, int] = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        number = whole(rest.split()[0]) if rest.split() else None
        if number is not None:
            values[name] = number * 1024 if rest.strip().endswith("kB") else number
    return values
