"""Control groups of version 2: one tree of folders for all kinds of limits, in which processes are in leaves alone.

edgeswarm-bed/nano-1              quota: 2.4 ms of every 20; memory
    app, load                     its parts, with its processes
edgeswarm-bed-spinner             beside the devices
"""

from __future__ import annotations

from pathlib import Path

from .groups import APP, LOAD, NAME, PROCESSES, Groups, Usage, numbers_in, pairs_in, patiently, quota_and_period

MOUNTS = Path("/proc/self/mounts")
CONTROLLERS = ("cpu", "memory")
_LOAD_WEIGHT = 10_000  # the kernel's largest, beside 100 where nothing is said
_NO_LIMIT = "max"


def mount_point(mounts: Path = MOUNTS) -> Path | None:
    """Where the tree is; None for nowhere."""
    lines = (line.split() for line in mounts.read_text().splitlines())
    return next((Path(where) for _, where, kind, *_ in lines if kind == "cgroup2"), None)


def why_not(tree: Path | None) -> str:
    """Why this machine can't have such groups; empty where it can."""
    if tree is None:
        return "no tree of them is mounted"
    known = (tree / "cgroup.controllers").read_text().split()
    if missing := [kind for kind in CONTROLLERS if kind not in known]:
        return f"{', '.join(missing)} not among what {tree} controls"
    # In a container the tree begins with the container's own group, whose processes keep it from having others.
    inside = set(CONTROLLERS) - set((tree / "cgroup.subtree_control").read_text().split())
    if inside and (tree / "cgroup.type").exists() and (tree / PROCESSES).read_text():
        return f"{tree} is a group with processes, as in a container"
    return ""


class Version2(Groups):
    """tree: where such a tree is mounted."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self.root = tree / NAME
        self.spinner = tree / f"{NAME}-spinner"

    def folders(self) -> list[Path]:
        return [self.root]

    def create(self, node: str, *, cores: float | None, memory_bytes: int | None) -> None:
        _allow(self._tree, CONTROLLERS)
        folder = self.root / node
        self.root.mkdir(exist_ok=True)
        _allow(self.root, CONTROLLERS)
        folder.mkdir()
        self.set_cores(node, cores or 0)
        if memory_bytes is not None:
            (folder / "memory.max").write_text(str(memory_bytes))
        _allow(folder, ("cpu",))
        for part in (APP, LOAD):
            (folder / part).mkdir()
        (folder / LOAD / "cpu.weight").write_text(str(_LOAD_WEIGHT))

    def set_cores(self, node: str, cores: float, *, part: str = "") -> None:
        limit = " ".join(map(str, quota_and_period(cores))) if cores > 0 else _NO_LIMIT
        (self.root / node / part / "cpu.max").write_text(limit)

    def cores_of(self, node: str) -> float | None:
        quota, *period = (self.root / node / "cpu.max").read_text().split()
        return None if quota == _NO_LIMIT else int(quota) / int(period[0])

    def entries(self, node: str, part: str = APP) -> list[Path]:
        return [self.root / node / part / PROCESSES]

    def processes(self, node: str) -> list[int]:
        parts = (self.root / node / part / PROCESSES for part in (APP, LOAD))
        return [number for part in parts if part.exists() for number in numbers_in(part)]  # one may be made just now

    def anonymous_bytes(self, node: str) -> int:
        return pairs_in(self.root / node / "memory.stat")["anon"]

    def memory_limit(self, node: str) -> int | None:
        limit = (self.root / node / "memory.max").read_text().strip()
        return None if limit == _NO_LIMIT else int(limit)

    def limit_memory(self, node: str, limit_bytes: int) -> None:
        folder = self.root / node

        def limit() -> None:
            # The kernel would kill what is beyond the limit, and not refuse it. Of files it lets go.
            files = pairs_in(folder / "memory.stat")
            held = int((folder / "memory.current").read_text()) - files["active_file"] - files["inactive_file"]
            if held > limit_bytes:
                raise OSError(f"{node} holds {held} bytes, more than a limit of {limit_bytes}")
            (folder / "memory.max").write_text(str(limit_bytes))

        patiently(limit)

    def ask_to_freeze(self, node: str, *, frozen: bool) -> None:
        (self.root / node / "cgroup.freeze").write_text("1" if frozen else "0")

    def is_freezing(self, node: str) -> bool:
        events = pairs_in(self.root / node / "cgroup.events")
        return self.is_frozen(node) and bool(events["populated"]) and not events["frozen"]

    def is_frozen(self, node: str) -> bool:
        return numbers_in(self.root / node / "cgroup.freeze") == [1]

    def usage(self, node: str) -> Usage:
        folder = self.root / node
        peak = folder / "memory.peak"  # since Linux 5.19
        return Usage(
            cpu_seconds=pairs_in(folder / APP / "cpu.stat")["usage_usec"] / 1e6,
            throttled_seconds=pairs_in(folder / "cpu.stat")["throttled_usec"] / 1e6,
            peak_bytes=int(peak.read_text()) if peak.exists() else None,
            oom_kills=pairs_in(folder / "memory.events")["oom_kill"],
        )


def _allow(folder: Path, kinds: tuple[str, ...]) -> None:
    """Groups in this one may have such limits."""
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{kind}" for kind in kinds))
