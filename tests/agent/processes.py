"""What the tests of the agent share: a cluster with its certificates, stand-in workers, a look at processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgeswarm.config import Folders
from edgeswarm.security.authority import CertificateAuthority, create_cluster
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm_agent.supervisor import WORKER_ENVIRONMENT

STAND_IN = Path(__file__).with_name("stand_in_worker.py")


def stand_in(mode: str) -> tuple[str, ...]:
    """The command of a worker that has this fault."""
    return (sys.executable, str(STAND_IN), mode)


def printed_as_worker(code: str) -> list[float]:
    """The numbers that code prints in a process of its own with a worker's allocator."""
    environment = {**os.environ, **WORKER_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    return [float(number) for number in ended.stdout.split()]


@dataclass(frozen=True)
class Cluster:
    """A cluster of its own in a temporary folder."""

    folder: Path
    authority: CertificateAuthority
    operator: Identity

    @classmethod
    def create(cls, folder: Path) -> Cluster:
        authority, operator = create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")
        return cls(folder, authority, operator)

    def agent(self, name: str, digits: str = "0a0a0a") -> tuple[Identity, Folders]:
        """The identity of a new agent, saved in folders of its own."""
        folders = Folders.within(self.folder / name)
        identity = self.authority.issue(node_id=f"{name}-{digits}", role=Role.AGENT)
        identity.save(folders.agent_dir)
        (folders.agent_dir / "node-id").write_text(identity.node_id + "\n")
        return identity, folders


def exists(process_id: int) -> bool:
    """Whether the process lives (one that waits to be reaped doesn't)."""
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    members: list[int] = []
    for process_id in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process_id) == group and exists(process_id):
                members.append(process_id)
    return members


def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Waits for something that another thread or process does; the limit only ends a test that is stuck."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def environment(home: Path) -> dict[str, str]:
    """For a command in a process of its own."""
    return {**os.environ, "EDGESWARM_HOME": str(home), "OMP_NUM_THREADS": "1"}
