"""Processes of this machine that other commands of edgeswarm look at later: is it still the same one, does it live?"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .runs import ProcessName

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LOOK_EVERY_SECONDS = 0.05
_ENDED_STATES = ("Z", "X")  # a zombie computes no more; it only waits for its parent


def this_process() -> ProcessName:
    """The name of the process that asks."""
    process = process_of(os.getpid())
    assert process is not None, "we live"
    return process


def process_of(pid: int) -> ProcessName | None:
    """The living process that has this number now; None where there is none."""
    began = _began(pid)
    return None if began is None else ProcessName(pid, began)


def lives(process: ProcessName) -> bool:
    """Whether this very process runs; False where another one has its number now."""
    return process_of(process.pid) == process


def send_signal(process: ProcessName, number: int) -> bool:
    """Send it a signal; False where it is gone. Raises PermissionError where it is another user's."""
    if not lives(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(process: ProcessName, *, timeout_seconds: float) -> bool:
    """Whether it ended in time."""
    deadline = time.monotonic() + timeout_seconds
    while lives(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_SECONDS)
    return True


def _began(pid: int) -> str | None:
    """When a living process began, in clock ticks since the boot, and which boot that was; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets and spaces too.
    state, *fields = stat[stat.rindex(")") + 1 :].split()
    return None if state in _ENDED_STATES else f"{fields[18]} {boot}"
