"""Makes the devices' quotas fine, and their speed steady: a real-time thread on each processor, awake every half millisecond.

The kernel looks whether a group has used up its quota when a tick comes, each 4 ms, or when the processor changes hands. A
device of 0.12 core, whose share was 1.2 ms in every 10, ran for up to 4 ms and stood still for 26. With processors that change
hands all the time:

    alone        ####______________________####____________      3.7 ms, then 26 ms of nothing
    with this    #_________#_________#_________#_________#       its share of every period (groups.py has 20 ms now)

It takes some 4 % of each processor. It also keeps the kernel from putting idle processors to sleep, which come back with cold
caches. A device of 0.12 core that was alone did 21 to 26 steps of a model a CPU second, and while others computed, or beside
this, 26 to 28. (On a virtual machine that is not enough: spinner.py.)

It also writes down how fast its processor is, by a short piece of work each hundredth of a second (speed.py reads it): on a
machine that is shared, the neighbours of a core make it slower, by up to a half, for seconds at a time.

    python -I metronome.py CPU FOLDER LOG      until the folder is gone; to LOG, pairs of doubles: when, and seconds of the work
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 0.0005
AWAKE = Path("/dev/cpu_dma_latency")  # asked for as long as it is open
BEATS_BETWEEN_SAMPLES = 20
SAMPLES_BETWEEN_LOOKS = 50
SAMPLE = struct.Struct("dd")
STEPS_OF_A_SAMPLE = 1000  # about 40 microseconds
PRIORITY = 50


def start(folder: Path, logs: Path) -> list[subprocess.Popen[bytes]]:
    """One for each processor, until `folder` is gone. logs: a folder for what they write down, one file each."""
    logs.mkdir(parents=True, exist_ok=True)
    return [
        subprocess.Popen(
            [sys.executable, "-I", __file__, str(cpu), str(folder), str(logs / str(cpu))],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for cpu in sorted(os.sched_getaffinity(0))
    ]


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Idle processors poll for work meanwhile; does nothing where the kernel has no way to ask for it."""
    try:
        asked = AWAKE.open("wb", buffering=0)
    except OSError:
        yield
        return
    with asked:
        asked.write((0).to_bytes(4, sys.byteorder))  # microseconds that a wake-up may take
        yield


def beat(cpu: int, folder: Path, log: Path) -> None:
    """Raises PermissionError where real time is not allowed."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    sleep = time.sleep
    made = _made(folder)
    with awake(), log.open("wb") as written:
        # Another testbed may have one of the same name half a second later.
        while made is not None and _made(folder) == made:
            for _ in range(SAMPLES_BETWEEN_LOOKS):
                for _ in range(BEATS_BETWEEN_SAMPLES):
                    sleep(SECONDS)
                written.write(SAMPLE.pack(time.monotonic(), sample()))
            written.flush()


def _made(folder: Path) -> int | None:
    """Which folder of that name it is; None where there is none."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def sample() -> float:
    """Seconds that a piece of work takes that needs the processor alone, and its own code in the processor's caches."""
    _work(STEPS_OF_A_SAMPLE)
    begin = time.perf_counter()
    _work(STEPS_OF_A_SAMPLE)
    return time.perf_counter() - begin


def _work(steps: int) -> None:
    total = 0
    for step in range(steps):
        total += step * step


if __name__ == "__main__":
    beat(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
