"""Ends the processes of a throw-away cluster, even when the program that started them was killed.

It runs as a process of its own and reads lines from its standard input, whose other end the cluster holds:

    +4711     the process 4711 belongs to the cluster
    -4711     it is gone
    (end)     the cluster is over, or whoever had it died: end what is left, remove the folder given as argument

It needs nothing but the standard library, so that it starts in no time.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

GRACE_SECONDS = 3.0
_LOOK_EVERY_SECONDS = 0.05


def read_processes(lines: Iterable[str]) -> set[int]:
    """The process ids that are left when the lines end."""
    processes: set[int] = set()
    for line in lines:
        if line.startswith("+"):
            processes.add(int(line[1:]))
        elif line.startswith("-"):
            processes.discard(int(line[1:]))
    return processes


def end(processes: set[int]) -> None:
    """Ask each process to end, and kill those that still live after GRACE_SECONDS."""
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while _signal(processes, 0) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
    _signal(processes, signal.SIGKILL)


def _signal(processes: set[int], number: int) -> set[int]:
    """Send the signal (0: none, just look) and return the processes that live."""
    living = set()
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
        living.add(process)
    return living


def main() -> None:
    # Ctrl-C in the terminal goes to every process there; this one has to outlast the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end(read_processes(sys.stdin))
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
