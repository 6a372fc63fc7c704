"""Makes the devices' quotas fine and their speed steady: on each processor something that beats, and something that spins.

The kernel looks whether a group has used up its quota when a tick comes, each 4 ms, or when the processor changes hands. A
device of 1.2 ms in every 10 therefore ran for up to 4 ms and stood still for 26. With processors that change hands all the time:

    alone        ####______________________####____________      3.7 ms, then 26 ms of nothing
    with this    #_________#_________#_________#_________#       1.2 ms of every 10

The beat is a real-time thread that wakes up every half millisecond and sleeps again; it takes some 4 % of each processor. What
spins has the lowest priority there is and gives way to everything, but keeps the processor from falling asleep: one that this
machine shares with others comes back slower, and with cold caches. A device of 0.12 core that is alone did 21 to 26 steps of
a model a CPU second, and 27 to 29 beside it; while other devices computed it was faster than alone.

    python -I metronome.py CPU FOLDER      until the folder is gone
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 0.0005
BEATS_BETWEEN_LOOKS = 1000
PRIORITY = 50


def start(folder: Path) -> list[subprocess.Popen[bytes]]:
    """One for each processor, until `folder` is gone."""
    return [
        subprocess.Popen(
            [sys.executable, "-I", __file__, str(cpu), str(folder)], stdin=subprocess.DEVNULL, start_new_session=True
        )
        for cpu in sorted(os.sched_getaffinity(0))
    ]


def spin(parent: int) -> None:
    """Until the parent is gone."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


def beat(cpu: int, folder: Path) -> None:
    """Raises PermissionError where real time is not allowed."""
    os.sched_setaffinity(0, {cpu})
    own = os.getpid()
    if os.fork() == 0:
        spin(own)
        os._exit(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    sleep = time.sleep
    while folder.exists():
        for _ in range(BEATS_BETWEEN_LOOKS):
            sleep(SECONDS)


if __name__ == "__main__":
    beat(int(sys.argv[1]), Path(sys.argv[2]))
