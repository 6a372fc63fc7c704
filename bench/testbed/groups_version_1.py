"""Control groups of version 1: a tree of folders for each kind of limit, and a device has one in each.

cpu/edgeswarm-bed/nano-1          quota: 2.4 ms of every 20
    app, load                     its parts
cpuacct, memory, freezer/edgeswarm-bed/nano-1
cpu/edgeswarm-bed-spinner         beside the devices
"""

from __future__ import annotations

from pathlib import Path

from .groups import APP, LOAD, NAME, PROCESSES, Groups, Usage, numbers_in, pairs_in, patiently, quota_and_period

MOUNTS = Path("/sys/fs/cgroup")
KINDS = ("cpu", "cpuacct", "memory", "freezer")
_LOAD_SHARES = 102_400
_NO_LIMIT_BYTES = 1 << 60  # or more: the kernel says the largest number that its pages allow


def why_not() -> str:
    """Why this machine can't have such groups; empty where it can."""
    missing = [kind for kind in KINDS if not (MOUNTS / kind / PROCESSES).exists()]
    return f"{', '.join(missing)} not found in {MOUNTS}" if missing else ""


class Version1(Groups):
    def __init__(self) -> None:
        self.root = self._of("freezer")
        self.spinner = MOUNTS / "cpu" / f"{NAME}-spinner"

    def _of(self, kind: str, node: str = "", part: str = "") -> Path:
        return MOUNTS / kind / NAME / node / part

    def folders(self) -> list[Path]:
        return [self._of(kind) for kind in KINDS]

    def create(self, node: str, *, cores: float | None, memory_bytes: int | None) -> None:
        for kind in KINDS:
            self._of(kind, node).mkdir(parents=True)
        self.set_cores(node, cores or 0)
        for part in (APP, LOAD):
            self._of("cpu", node, part).mkdir()
        (self._of("cpu", node, LOAD) / "cpu.shares").write_text(str(_LOAD_SHARES))
        if memory_bytes is not None:
            self.limit_memory(node, memory_bytes)

    def set_cores(self, node: str, cores: float, *, part: str = "") -> None:
        folder = self._of("cpu", node, part)
        (folder / "cpu.cfs_quota_us").write_text("-1")
        if cores > 0:
            quota, period = quota_and_period(cores)
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))

    def cores_of(self, node: str) -> float | None:
        quota, period = (
            int((self._of("cpu", node) / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period")
        )
        return quota / period if quota > 0 else None

    def entries(self, node: str, part: str = APP) -> list[Path]:
        # What disturbs a device is none of its own CPU seconds, and has next to no memory.
        others = ("cpuacct", "memory", "freezer") if part == APP else ("freezer",)
        return [self._of("cpu", node, part) / PROCESSES, *(self._of(kind, node) / PROCESSES for kind in others)]

    def processes(self, node: str) -> list[int]:
        return numbers_in(self._of("freezer", node) / PROCESSES)

    def anonymous_bytes(self, node: str) -> int:
        return pairs_in(self._of("memory", node) / "memory.stat")["rss"]

    def memory_limit(self, node: str) -> int | None:
        limit = int((self._of("memory", node) / "memory.limit_in_bytes").read_text())
        return limit if limit < _NO_LIMIT_BYTES else None

    def limit_memory(self, node: str, limit_bytes: int) -> None:
        path = self._of("memory", node) / "memory.limit_in_bytes"
        patiently(lambda: path.write_text(str(limit_bytes)))

    def ask_to_freeze(self, node: str, *, frozen: bool) -> None:
        (self._of("freezer", node) / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def is_freezing(self, node: str) -> bool:
        return self._state(node) == "FREEZING"

    def is_frozen(self, node: str) -> bool:
        return self._state(node) != "THAWED"

    def _state(self, node: str) -> str:
        return (self._of("freezer", node) / "freezer.state").read_text().strip()

    def usage(self, node: str) -> Usage:
        memory = self._of("memory", node)
        return Usage(
            cpu_seconds=int((self._of("cpuacct", node) / "cpuacct.usage").read_text()) / 1e9,
            throttled_seconds=pairs_in(self._of("cpu", node) / "cpu.stat")["throttled_time"] / 1e9,
            peak_bytes=int((memory / "memory.max_usage_in_bytes").read_text()),
            oom_kills=pairs_in(memory / "memory.oom_control").get("oom_kill", 0),
        )
