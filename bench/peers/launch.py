"""Runs a peer's script on devices of the testbed, one process on each, and reads what rank 0 says.

Peers get the allocator's settings that edgeswarm's workers have, though few users would think of them: what is compared is
the way of training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.origin import REPOSITORY
from bench.peers.rounds import READY
from bench.testbed import bed as beds
from bench.testbed.bed import EmulatedLan
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

PORT = 29500
_END_SECONDS = 30.0


@dataclass(frozen=True)
class PeerRun:
    """round_seconds: of the timed rounds, none where it failed. round_ends: when each was over (time.monotonic).
    problem: why it failed; empty otherwise. short_of_memory: on which device it ran out of it; empty for another problem.

    Of each rank: cpu_seconds, and sent_bytes with all headers, over the timed rounds; peak_bytes of its memory, without files, as
    edgeswarm's workers tell theirs. joules: of the whole machine over the timed rounds; None where no sensor says.
    """

    round_seconds: tuple[float, ...] = ()
    round_ends: tuple[float, ...] = ()
    problem: str = ""
    short_of_memory: str = ""
    cpu_seconds: tuple[float, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    sent_bytes: tuple[int, ...] = ()
    joules: float | None = None


def run_peer(
    bed: EmulatedLan,
    script: str,
    devices: Sequence[str],
    *options: object,
    folder: Path,
    limit_seconds: float,
) -> PeerRun:
    """A script that times rounds. devices: in the order of ranks. folder: for the ranks' logs, made here."""
    log, problem = run_script(
        bed, script, devices, *options, folder=folder, limit_seconds=limit_seconds, start_is_timed=False
    )
    if problem:
        return PeerRun(
            problem=problem, short_of_memory=next((name for name in devices if problem == out_of_memory(name)), "")
        )
    told = _told(log.read_text())
    return PeerRun(
        round_seconds=tuple(told["round_seconds"]),
        round_ends=tuple(told["round_ends"]),
        cpu_seconds=tuple(rank["cpu_seconds"] for rank in told["ranks"]),
        peak_bytes=tuple(int(rank["peak_bytes"]) for rank in told["ranks"]),
        sent_bytes=tuple(int(rank["sent_bytes"]) for rank in told["ranks"]),
        joules=told["joules"],
    )


def run_script(
    bed: EmulatedLan,
    script: str,
    devices: Sequence[str],
    *options: object,
    folder: Path,
    limit_seconds: float,
    start_is_timed: bool,
) -> tuple[Path, str]:
    """script: a module of this package. Rank 0's log, and why it failed; the latter is empty where it didn't.

    start_is_timed: it has the devices' own speed then, otherwise all that this machine has.
    """
    folder.mkdir(parents=True)
    master = f"{bed.addresses[devices[0]]}:{PORT}"
    killed = {name: beds.statistics(name)["oom_kills"] for name in devices}
    processes: dict[str, subprocess.Popen[str]] = {}
    with bed.at_full_speed(() if start_is_timed else devices):
        for rank, name in enumerate(devices):
            words = [sys.executable, "-m", f"bench.peers.{script}", *map(str, options)]
            place = ["--rank", str(rank), "--world", str(len(devices)), "--master", master]
            with (folder / f"{rank}-{name}.log").open("w") as log:
                processes[name] = bed.start(name, *words, *place, environment=_environment(), log=log)
        if not start_is_timed:
            _wait_until_ready(processes, folder, limit_seconds)
    problem = _wait(processes, limit_seconds)
    for process in processes.values():
        if process.poll() is None:
            process.kill()
    for process in processes.values():
        process.wait(_END_SECONDS)
    if problem:
        of_memory = (name for name in devices if beds.statistics(name)["oom_kills"] > killed[name])
        problem = next(map(out_of_memory, of_memory), problem)
    return folder / f"0-{devices[0]}.log", problem


def out_of_memory(device: str) -> str:
    return f"out of memory on {device}"


def _environment() -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("EDGESWARM_")}
    return {**plain, **ALLOCATOR_ENVIRONMENT, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(REPOSITORY)}


def _wait_until_ready(processes: dict[str, subprocess.Popen[str]], folder: Path, limit_seconds: float) -> None:
    """Until each has its model and all that was imported for it, or has ended, or the time is over."""
    deadline = time.monotonic() + limit_seconds
    for rank, (name, process) in enumerate(processes.items()):
        log = folder / f"{rank}-{name}.log"
        while process.poll() is None and READY not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)


def _wait(processes: dict[str, subprocess.Popen[str]], limit_seconds: float) -> str:
    """Until all have ended well, or one hasn't; why not, or nothing."""
    deadline = time.monotonic() + limit_seconds
    while any(process.poll() is None for process in processes.values()):
        for name, process in processes.items():
            if process.poll() not in (None, 0):
                return f"{name} ended with {process.returncode}"
        if time.monotonic() > deadline:
            return f"not done within {limit_seconds:.0f} s"
        time.sleep(0.2)
    for name, process in processes.items():
        if process.returncode != 0:
            return f"{name} ended with {process.returncode}"
    return ""


def _told(log: str) -> dict[str, Any]:
    line = next(line for line in log.splitlines() if line.startswith('{"round_seconds"'))
    found: dict[str, Any] = json.loads(line)
    return found
