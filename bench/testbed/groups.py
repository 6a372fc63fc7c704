"""What a device may use of this machine: control groups of the kernel, of version 1 or 2, whichever this machine has.

A device has a quota of the processors, a limit of memory, and two parts that share both:

    app      what runs on the device
    load     what disturbs it; it gets what it asked for, and `app` the rest

Beside the devices is a group of what keeps the processors busy (spinner.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import spinner

NAME = "edgeswarm-bed"
APP, LOAD = "app", "load"
PROCESSES = "cgroup.procs"
# Short, so that a device that has used up its share stalls for less than this (see metronome.py); not shorter, since each turn
# begins with caches that others have filled: a nano of 0.12 core trained MobileNetV2 a tenth quicker with this than with half.
PERIOD_MICROSECONDS = 20_000
LEAST_QUOTA_MICROSECONDS = 1_000  # the kernel's own
LONGEST_PERIOD_MICROSECONDS = 1_000_000  # likewise
_GONE_SECONDS = 10.0


@dataclass(frozen=True)
class Usage:
    """Of a device since it exists. throttled_seconds: in which it had used up its share.

    peak_bytes: of memory, files among it; None where the kernel doesn't tell.
    """

    cpu_seconds: float
    throttled_seconds: float
    peak_bytes: int | None
    oom_kills: int


class Groups(ABC):
    """root: has a folder for each device, and exists as long as there are any. spinner: the folder of what spins."""

    root: Path
    spinner: Path

    def nodes(self) -> list[str]:
        """The devices that exist, the hub among them."""
        return sorted(entry.name for entry in self.root.iterdir() if entry.is_dir()) if self.root.is_dir() else []

    @abstractmethod
    def create(self, node: str, *, cores: float | None, memory_bytes: int | None) -> None:
        """None: no limit. Raises OSError where the kernel doesn't let it."""

    @abstractmethod
    def set_cores(self, node: str, cores: float, *, part: str = "") -> None:
        """A quota of so many cores for a device or a part of it, none for 0."""

    @abstractmethod
    def cores_of(self, node: str) -> float | None:
        """The device's quota; None for none."""

    @abstractmethod
    def entries(self, node: str, part: str = APP) -> list[Path]:
        """The files into which a process writes its id to be on the device."""

    @abstractmethod
    def processes(self, node: str) -> list[int]:
        """The ids of all that runs on the device."""

    def processes_of(self, node: str, part: str) -> list[int]:
        """The ids of what runs in this part of it."""
        return numbers_in(self.entries(node, part)[0])

    @abstractmethod
    def anonymous_bytes(self, node: str) -> int:
        """What the device's processes hold, files left out."""

    @abstractmethod
    def memory_limit(self, node: str) -> int | None:
        """In bytes; None for none."""

    @abstractmethod
    def limit_memory(self, node: str, limit_bytes: int) -> None:
        """Waits for what ended just now to be gone, where that is beyond the new limit."""

    @abstractmethod
    def ask_to_freeze(self, node: str, *, frozen: bool) -> None:
        """Without waiting for it."""

    @abstractmethod
    def is_freezing(self, node: str) -> bool:
        """Whether something runs that was asked to stop."""

    @abstractmethod
    def is_frozen(self, node: str) -> bool:
        """Whether it was asked to stop."""

    @abstractmethod
    def usage(self, node: str) -> Usage: ...

    @abstractmethod
    def folders(self) -> list[Path]:
        """Of all devices together: whatever is in them is the testbed's."""

    def freeze(self, node: str, *, frozen: bool) -> None:
        """Stops all that runs there, or lets it go on; its kernel goes on acknowledging what the network brings."""
        self.ask_to_freeze(node, frozen=frozen)
        while self.is_freezing(node):
            time.sleep(0.005)

    def kill_all(self, node: str) -> None:
        """SIGKILL for every process; frozen first, so that none gets away by forking."""
        deadline = time.monotonic() + _GONE_SECONDS
        while running := self.processes(node):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{node}: the processes {running} don't end")
            self.ask_to_freeze(node, frozen=True)
            for process_id in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            self.freeze(node, frozen=False)
            time.sleep(0.02)
        self.freeze(node, frozen=False)

    def remove_all(self) -> None:
        """Every device's groups with what runs in them, and the spinner's. May be repeated."""
        for node in self.nodes():
            self.kill_all(node)
        for root in filter(Path.is_dir, self.folders()):
            inside = [entry for entry in root.rglob("*") if entry.is_dir()]
            for folder in sorted([root, *inside], key=lambda entry: -len(entry.parts)):
                remove_group(folder)
        # Last: what had only just been started joins its group late, and leaves it once it sees that the others are gone.
        spinner.stop(self.spinner)
        if self.spinner.is_dir():
            remove_group(self.spinner)


def quota_and_period(cores: float) -> tuple[int, int]:
    """Microseconds of the processors in each so many."""
    period = min(max(PERIOD_MICROSECONDS, math.ceil(LEAST_QUOTA_MICROSECONDS / cores)), LONGEST_PERIOD_MICROSECONDS)
    return max(LEAST_QUOTA_MICROSECONDS, int(cores * period)), period


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def pairs_in(path: Path) -> dict[str, int]:
    """Of lines with a name and a number each."""
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def remove_group(folder: Path) -> None:
    """A group stays busy for a moment after its last process."""
    patiently(folder.rmdir)


def patiently(act: Callable[[], object]) -> None:
    """What the kernel may refuse for a moment. Raises OSError where it goes on refusing."""
    for left in range(50, -1, -1):
        try:
            act()
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.1)
