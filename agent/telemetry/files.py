"""Reading the small files of /proc and /sys. A file that isn't there or can't be read is an answer: None.

Every function takes the root under which `proc`, `sys` and `etc` lie, so that a test can hand in another tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str | None:
    """The file's text without surrounding blanks and NUL bytes (the device tree ends its texts with one)."""
    try:
        return path.read_text(errors="replace").strip("\0 \n\t")
    except OSError:
        return None


def read_whole(path: Path) -> int | None:
    """The whole number in the file; None where there is no file or no number (`max`)."""
    return whole(read_text(path))


def whole(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def read_counters(path: Path) -> dict[str, int]:
    """Lines of `name value`, as in memory.stat and vmstat."""
    counters: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        number = whole(value.strip())
        if number is not None:
            counters[name] = number
    return counters


def cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """This process's control groups that could limit `controller` ("memory", "cpu"), from the inmost outwards.

    Gives (version, folder): version 2 for the unified hierarchy, 1 for the controller's own. Every one's limit holds.
    In a container the path that the kernel names is often the host's; then the mounted top is the container's group.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                if (root / mount / "cgroup.controllers").exists():
                    yield from ((2, folder) for folder in _outwards(root / mount, path))
        elif controller in controllers.split(","):
            for mount in (f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"):
                if (root / mount).is_dir():
                    yield from ((1, folder) for folder in _outwards(root / mount, path))
                    break


def hidden_cgroup(root: Path, controller: str) -> str:
    """This process's control group for `controller` where nobody can read its limits here; empty where they can be read.

    So it is where /sys was mounted anew without the groups, as `ip netns exec` does.
    """
    try:
        if any((root / "sys/fs/cgroup").iterdir()):
            return ""
    except OSError:  # no such folder: a kernel without control groups names none below, either
        pass
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if path.strip("/") and (not controllers or controller in controllers.split(",")):
            return path
    return ""


def _outwards(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part and part != ".."]
    for count in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:count])
        if folder.is_dir():
            yield folder
