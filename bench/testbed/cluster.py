"""A throw-away cluster on a testbed: an agent on each device, joined over the LAN, found from the hub by real mDNS.

hub, this process       authority, operator, data service; nothing limits it
nano-1, nano-2, ...     `edgeswarm-agent run`, in its namespace and groups; default ports
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from edgeswarm.config import Folders
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.join import JoinServer
from edgeswarm.security.node_id import load_or_create_node_id
from edgeswarm.security.token import TokenStore
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT
from edgeswarm_coordinator.options import DiscoveryOptions

from . import companion
from .bed import EmulatedLan, on, runtime_environment
from .groups_here import groups
from .links import HUB_ADDRESS

_AGENT = (sys.executable, "-m", "edgeswarm_agent.cli")
_READY = '{"node_id"'
_COMPANION_STEP_SECONDS = 0.5  # by the clock
_START_SECONDS = 180.0  # on an eighth of a core Python takes its time


class BedCluster:
    """bed: exists already. folder: of all homes and logs, kept; a new temporary one by default. ready_worker_seconds: as the
    agents' setting; a worker that starts behind a job disturbs what is measured next.
    """

    def __init__(self, bed: EmulatedLan, *, folder: Path | None = None, ready_worker_seconds: float = 0.0) -> None:
        self.bed = bed
        self._ready_worker_seconds = ready_worker_seconds
        self.folder = Path(tempfile.mkdtemp(prefix="edgeswarm-bed-")) if folder is None else folder.absolute()
        self.names = tuple(device.name for device in bed.environment.devices)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._node_ids = {
            name: load_or_create_node_id(Folders.within(self.home(name)).agent_dir, name=name) for name in self.names
        }

    def __enter__(self) -> BedCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def operator_home(self) -> Path:
        return self.folder / "operator"

    @property
    def folders(self) -> Folders:
        """The operator's."""
        return Folders.within(self.operator_home)

    def home(self, name: str) -> Path:
        return self.folder / "agents" / name

    def node_id(self, name: str) -> str:
        return self._node_ids[name]

    def log(self, name: str) -> str:
        path = self._log_path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def discovery(self) -> DiscoveryOptions:
        """All devices, by mDNS on the LAN; found as soon as the last one answers."""
        return DiscoveryOptions(devices=tuple(self._node_ids.values()), interfaces=(HUB_ADDRESS,), wait_seconds=15.0)

    def operator_environment(self) -> dict[str, str]:
        """In which `edgeswarm`, on this machine, has these devices for its own."""
        return {
            **self._plain_environment(),
            "EDGESWARM_HOME": str(self.operator_home),
            "EDGESWARM_INTERFACES": HUB_ADDRESS,
            "EDGESWARM_LISTEN_ADDRESS": HUB_ADDRESS,
        }

    def start(self) -> None:
        """Returns when every agent is ready. Raises RuntimeError with the log of one that isn't."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        folders = self.folders
        authority, _ = create_cluster(authority_folder=folders.authority_dir, operator_folder=folders.operator_dir)
        token = TokenStore(folders.authority_dir).create(
            authority.fingerprint, uses=len(self.names), lifetime_seconds=2 * _START_SECONDS
        )
        with JoinServer(authority, folders.authority_dir, host=HUB_ADDRESS, port=0) as server:
            joining = {
                name: self._start(name, "join", f"{HUB_ADDRESS}:{server.port}", str(token)) for name in self.names
            }
            for name, process in joining.items():
                if process.wait(_START_SECONDS) != 0:
                    raise RuntimeError(f"{name} did not join: {self.log(name)}")
        for name in self.names:
            self.processes[name] = self._start(
                name, "run", "--json-ready", "--threads", "1", "--ready-worker", str(self._ready_worker_seconds)
            )
        deadline = time.monotonic() + _START_SECONDS
        for name, process in self.processes.items():
            while _READY not in self.log(name):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} did not start: {self.log(name)}")
                time.sleep(0.05)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The agents stand still meanwhile, so that the devices are all for something else: their memory, too, which is as much
        larger as the agents hold.
        """
        running = [process_id for name in self.names for process_id in groups().processes(name)]
        limits = {name: limit for name in self.names if (limit := groups().memory_limit(name)) is not None}
        try:
            _signal_all(running, signal.SIGSTOP)
            for name, limit_bytes in limits.items():
                groups().limit_memory(name, limit_bytes + groups().anonymous_bytes(name))
            yield
        finally:
            try:
                for name, limit_bytes in limits.items():
                    groups().limit_memory(name, limit_bytes)
            finally:
                _signal_all(running, signal.SIGCONT)

    @contextlib.contextmanager
    def accompanied(self, names: Sequence[str], stage: Path) -> Iterator[Callable[[Iterable[str]], None]]:
        """These devices train meanwhile (companion.py). stage: a file with the model. Gives what ends that early on some."""
        companions: dict[str, subprocess.Popen[str]] = {}
        left: set[str] = set()

        def leave(some: Iterable[str]) -> None:
            left.update(some)
            for name in some:
                companions[name].kill()
                companions[name].wait()

        cores = {device.name: device.cores for device in self.bed.environment.devices}
        with contextlib.ExitStack() as stack:
            with self.bed.at_full_speed(names):
                for name in names:
                    environment = {**self._plain_environment(), **ALLOCATOR_ENVIRONMENT, **runtime_environment(name)}
                    words = (companion.__file__, stage, f"{_COMPANION_STEP_SECONDS * cores[name]:g}")
                    process = stack.enter_context(
                        subprocess.Popen(
                            on(name, sys.executable, *map(str, words)),
                            stdout=subprocess.PIPE,
                            env=environment,
                            text=True,
                        )
                    )
                    stack.callback(process.kill)
                    companions[name] = process
                for name, process in companions.items():
                    assert process.stdout is not None
                    if process.stdout.readline() != companion.READY:
                        raise RuntimeError(f"{name} ended with {process.wait()} before it trained beside the others")
            yield leave
            for name, process in companions.items():
                if name not in left and process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode} while it trained beside the others")

    def stop(self) -> None:
        """Ends the agents; the folder stays."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with self._log_path(name).open("a") as log:
            return self.bed.start(name, *_AGENT, *arguments, environment=self._environment(name), log=log)

    def _environment(self, name: str) -> Mapping[str, str]:
        return {**self._plain_environment(), "EDGESWARM_HOME": str(self.home(name)), "PYTHONUNBUFFERED": "1"}

    @staticmethod
    def _plain_environment() -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith("EDGESWARM_")}


def _signal_all(process_ids: Iterable[int], number: signal.Signals) -> None:
    """Those that are still there: a worker may end by itself meanwhile."""
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, number)
