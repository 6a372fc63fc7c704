"""Processes of this machine that other commands of edgeswarm look at later: is it still the same one, does it live?"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from pathlib import Path

from .runs import ProcessName

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_LOOK_EVERY_SECONDS = 0.05
_ENDED_STATES = ("Z", "X")  # a zombie computes no more; it only waits for its parent


def this_process() -> ProcessName:
    """The name of the process that asks."""
    process = process_of(os.getpid())
    assert process is not None, "we live"
    return process


def this_machine() -> str:
    """A name of this machine that stays where its host name changes; the host name where it has no other."""
    for path in _MACHINE_IDS:
        with contextlib.suppress(OSError):
            if machine_id := path.read_text(errors="replace").strip():
                # systemd wants nobody to be told the number itself.
                return hashlib.sha256(f"edgeswarm {machine_id}".encode()).hexdigest()[:32]
    return socket.gethostname()


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
        # A name that the kernel has cut may end within a letter.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets and spaces too.
    state, *fields = stat[stat.rindex(")") + 1 :].split()
    return None if state in _ENDED_STATES else f"{fields[18]} {boot}"
