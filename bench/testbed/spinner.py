"""Keeps the processors busy when nothing else wants them: those of a virtual machine that rest are given away.

A processor that waits is taken back by the host, and comes back wherever there is room, often on a core that a neighbour has half
of. Emulated devices rest most of the time, each until its next share of a period. Slowness (speed.py) on such a machine, while
five devices of 0.12 core trained, each figure of 10 seconds:

    without      1.41 1.83 1.78 1.78 1.53 1.41
    with this    1.21 1.24 1.18 1.19 1.14 1.09

What spins is of the kernel's idle class, in a group that is so, too: whatever else can run comes first, and the kernel takes the
processor for idle when it looks for one. (Something that spins as usual work does leaves two devices on one processor.)

    python -I spinner.py CPU FOLDER PROCESSES      until the folder is gone; PROCESSES: the group's file for its id
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

SPINS_BETWEEN_LOOKS = 100_000  # some milliseconds


def start(folder: Path, group: Path) -> list[subprocess.Popen[bytes]]:
    """One for each processor, until `folder` is gone; none where the kernel has no groups of its idle class.

    group: a folder of the kernel's, which is made.
    """
    group.mkdir()
    try:
        (group / "cpu.idle").write_text("1")
    except OSError:
        group.rmdir()
        return []
    return [
        subprocess.Popen(
            [sys.executable, "-I", __file__, str(cpu), str(folder), str(group / "cgroup.procs")],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for cpu in sorted(os.sched_getaffinity(0))
    ]


def stop(group: Path) -> None:
    """Those that spin in the group, whose folder may go then. May be repeated."""
    processes = group / "cgroup.procs"
    for line in processes.read_text().split() if processes.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


def spin(cpu: int, folder: Path, processes: Path) -> None:
    """Joins the group."""
    processes.write_text(str(os.getpid()))
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while folder.exists():
        for _ in range(SPINS_BETWEEN_LOOKS):
            pass


if __name__ == "__main__":
    spin(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
