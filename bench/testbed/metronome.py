"""Makes the devices' quotas fine: a real-time thread on each processor, which wakes up every half millisecond and sleeps again.

The kernel looks whether a group has used up its quota when a tick comes, each 4 ms, or when the processor changes hands. A
device of 1.2 ms in every 10 therefore ran for up to 4 ms and stood still for 26. With processors that change hands all the time:

    alone        ####______________________####____________      3.7 ms, then 26 ms of nothing
    with this    #_________#_________#_________#_________#       1.2 ms of every 10

    python -I metronome.py CPU FOLDER      until the folder is gone

It takes some 4 % of each processor.
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


def beat(cpu: int, folder: Path) -> None:
    """Raises PermissionError where real time is not allowed."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    sleep = time.sleep
    while folder.exists():
        for _ in range(BEATS_BETWEEN_LOOKS):
            sleep(SECONDS)


if __name__ == "__main__":
    beat(int(sys.argv[1]), Path(sys.argv[2]))
