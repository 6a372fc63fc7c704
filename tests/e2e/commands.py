"""Real `edgeswarm` commands as processes of their own, and a look at what they leave behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .warm_start import WarmCommand, WarmStart

_WARM = WarmStart()
EDGESWARM = Path(sys.executable).with_name("edgeswarm")
EDGESWARM_AGENT = Path(sys.executable).with_name("edgeswarm-agent")
IDLE_SECONDS = 15.0  # within which the devices are free again, whatever happened: 5 by design, more on a busy machine
_STUCK_SECONDS = 60.0  # only ends a test that is stuck


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: negative where a signal ended it."""

    code: int
    output: str
    said: str

    @property
    def message(self) -> str:
        """The one error message, its remedy below it; no traceback anywhere (details are in a file that it names)."""
        lines = self.said.splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        assert len(starts) == 1, self.said
        assert "Traceback" not in self.said, self.said
        assert "edgeswarm made a mistake of its own" not in self.said, self.said
        message = "\n".join(lines[starts[0] : starts[0] + 2])
        return message


class RunningCommand:
    """One command. What it says on standard error is read as it comes; `wait_for` waits for a part of it.

    temporary: its folder for temporary files, which is to be empty when it has ended. warm: it is a command of `edgeswarm` that
    may find its modules imported (warm_start.py).
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        temporary: Path,
        warm: bool = False,
    ) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self.temporary = temporary
        words = [str(argument) for argument in arguments]
        environment = {
            **environment,
            "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
        self._process: subprocess.Popen[str] | WarmCommand
        if warm:
            assert arguments[0] == EDGESWARM
            self._process = _WARM.start(words[1:], environment=environment, folder=temporary.parent)
        else:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=temporary.parent,
                env=environment,
            )
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._over = False
        self._output: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_errors, self._read_output)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def children(self) -> list[psutil.Process]:
        """Its living child processes: the data service, once it runs."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_for(self, text: str) -> None:
        """Waits until it has said this; fails with all that it said where it ends without."""
        with self._changed:
            heard = self._changed.wait_for(lambda: self._over or text in "".join(self._said), _STUCK_SECONDS)
            said = "".join(self._said)
        assert heard, f"the command has said nothing more for a long time:\n{said}"
        assert text in said, f"the command ended without {text!r}:\n{said}"

    def end(self, timeout_seconds: float = _STUCK_SECONDS) -> Ended:
        """Waits for its end."""
        code = self._process.wait(timeout_seconds)
        for reader in self._readers:
            reader.join(timeout_seconds)
        return Ended(code, "".join(self._output), "".join(self._said))

    def kill(self) -> None:
        """For the end of a test that failed."""
        self._process.kill()
        self._process.wait()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._said.append(line)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        self._output.append(self._process.stdout.read())


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those which run (one that waits to be reaped doesn't)."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def worker_of(cluster: ThrowawayCluster, name: str) -> psutil.Process:
    """The worker of an agent that a job holds."""
    (worker,) = psutil.Process(cluster.pid(name)).children()
    return worker


def busy_job(cluster: ThrowawayCluster, name: str) -> str:
    """The job that holds the agent, as it says itself; empty while it is idle."""
    identity = Identity.load(cluster.folders.operator_dir, role=Role.OPERATOR)
    link = AgentLink.open(cluster.address(name), node_id=cluster.node_id(name), identity=identity)
    try:
        return link.device.busy_with_job
    finally:
        link.close()


def _is_idle(cluster: ThrowawayCluster, name: str) -> bool:
    return not busy_job(cluster, name)


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def wait_until_idle(cluster: ThrowawayCluster, *names: str) -> None:
    """The agents are idle soon, and have no worker."""
    for name in names:
        wait_until(partial(_is_idle, cluster, name), seconds=IDLE_SECONDS, what=f"{name} is idle")
        assert not living(psutil.Process(cluster.pid(name)).children()), f"{name} has a worker"
