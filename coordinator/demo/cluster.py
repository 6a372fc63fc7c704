"""ThrowawayCluster: a whole cluster on this machine, in a folder of its own, for the demo, tests and benchmarks.

    folder/
      operator/             EDGESWARM_HOME of the operator: authority, identity, profile cache
      agents/nano-1/        EDGESWARM_HOME of an agent: node id, identity, cache
      logs/nano-1.log       what that agent said

The agents are real processes which joined through the real join server with a real token; nothing is mocked, nothing is
plain text. Everything listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.own_module import own_module
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.join import JoinServer
from edgeswarm.security.node_id import load_or_create_node_id
from edgeswarm.security.token import TokenStore

from ..work_folder import not_made
from . import keeper

if TYPE_CHECKING:
    from ..options import DiscoveryOptions

LOOPBACK = "127.0.0.1"
_AGENT = own_module("edgeswarm_agent.cli")
_START_SECONDS = 60.0  # generous: a loaded machine starts Python slowly
_LOOK_EVERY_SECONDS = 0.02
_LOG_LINES_IN_AN_ERROR = 20


@dataclass(frozen=True)
class AgentSpec:
    """One agent to start.

    name: for a person, and the beginning of its node id. slow_down: how many times longer its computing takes.
    threads: of its worker. memory: what it may use, as `--memory` takes it ("512 MiB"); None for all that is free.
    environment: of this agent, besides its cluster's. ready_worker_seconds: for which a worker waits for another job.
    """

    name: str
    slow_down: float = 1.0
    threads: int = 1
    memory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_worker_seconds: float = 0.0


@dataclass
class _Agent:
    spec: AgentSpec
    home: Path
    log_path: Path
    node_id: str
    port: int = 0  # 0 until it first said which one it took; a restart takes the same
    process: subprocess.Popen[bytes] | None = None

    @property
    def living(self) -> bool:
        return self.process is not None and self.process.poll() is None


class ThrowawayCluster:
    """A cluster that lives as long as the `with` block, or from `start` to `stop`.

    agents: specs or bare names. folder: a new temporary one by default, removed at the end; one that is given is kept.
    mdns: agents announce themselves on the loopback interface. environment: for all agents, besides this process's own.
    When the process that has the cluster dies, however it dies, the agents end too (see keeper.py).
    """

    def __init__(
        self,
        agents: Sequence[AgentSpec | str],
        *,
        folder: Path | None = None,
        mdns: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        specs = [AgentSpec(agent) if isinstance(agent, str) else agent for agent in agents]
        if not specs or len({spec.name for spec in specs}) != len(specs):
            raise ValueError("a cluster needs at least one agent, and a name of its own for each")
        self._temporary = folder is None
        self.folder = self._made_folder() if folder is None else folder.absolute()
        self.mdns = mdns
        self._environment = dict(environment or {})
        self._agents: dict[str, _Agent] = {}
        for spec in specs:
            home = self.folder / "agents" / spec.name
            node_id = load_or_create_node_id(Folders.within(home).agent_dir, name=spec.name)
            self._agents[spec.name] = _Agent(spec, home, self.folder / "logs" / f"{spec.name}.log", node_id)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_lock = threading.Lock()

    def _made_folder(self) -> Path:
        try:
            return Path(tempfile.mkdtemp(prefix="edgeswarm-cluster-"))
        except OSError as error:
            raise not_made(None, error) from error

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def operator_home(self) -> Path:
        """EDGESWARM_HOME for `edgeswarm` commands that are to talk to this cluster."""
        return self.folder / "operator"

    @property
    def folders(self) -> Folders:
        """The operator's folders."""
        return Folders.within(self.operator_home)

    @property
    def environment(self) -> dict[str, str]:
        """The environment for an `edgeswarm` command that is to talk to this cluster."""
        return {**_plain_environment(), "EDGESWARM_HOME": str(self.operator_home)}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of every agent's control service, in the order of `names`; known after `start`."""
        return tuple(f"{LOOPBACK}:{agent.port}" for agent in self._agents.values())

    def discovery(self, *, mdns: bool = False, wait_seconds: float = 2.0) -> DiscoveryOptions:
        """How to find these agents: by address, or by mDNS on the loopback interface."""
        from ..options import DiscoveryOptions

        if mdns:
            return DiscoveryOptions(interfaces=(LOOPBACK,), wait_seconds=wait_seconds)
        return DiscoveryOptions(peers=self.addresses, mdns=False)

    def node_id(self, name: str) -> str:
        return self._agents[name].node_id

    def address(self, name: str) -> str:
        return f"{LOOPBACK}:{self._agents[name].port}"

    def home(self, name: str) -> Path:
        """The agent's EDGESWARM_HOME."""
        return self._agents[name].home

    def pid(self, name: str) -> int:
        """Process id of the agent's daemon; raises ValueError when it isn't running."""
        process = self._agents[name].process
        if process is None or process.poll() is not None:
            raise ValueError(f"the agent {name} is not running")
        return process.pid

    def log(self, name: str) -> str:
        """All that the agent wrote to its standard output and error, restarts included."""
        path = self._agents[name].log_path
        return path.read_text(errors="replace") if path.exists() else ""

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self, *, cancel: threading.Event | None = None) -> None:
        """Make the authority, let every agent join and run, all at once; returns when each one says that it is ready.

        Raises EdgeswarmError naming the agent that didn't start, with the end of its log; the others are ended then.
        cancel: set it to give up (EdgeswarmError INTERRUPTED).
        """
        cancel = cancel or threading.Event()
        try:
            self._start(cancel)
        except BaseException:
            cancel.set()  # lets the threads that still wait for an agent end
            self.stop()
            raise

    def _start(self, cancel: threading.Event) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._start_keeper()
        folders = self.folders
        authority, _ = create_cluster(authority_folder=folders.authority_dir, operator_folder=folders.operator_dir)
        tokens = TokenStore(folders.authority_dir)
        token = tokens.create(authority.fingerprint, uses=len(self._agents), lifetime_seconds=10 * _START_SECONDS)
        agents = self._agents.values()
        with (
            JoinServer(authority, folders.authority_dir, host=LOOPBACK, port=0) as server,
            ThreadPoolExecutor(len(agents)) as pool,
        ):

            def join_and_run(agent: _Agent) -> None:
                self._run(agent, cancel, "join", f"{LOOPBACK}:{server.port}", str(token))
                self._launch(agent, cancel)

            for ready in [pool.submit(join_and_run, agent) for agent in agents]:
                ready.result()

    def stop(self) -> None:
        """End every process of the cluster within seconds, and remove a temporary folder. May be repeated."""
        running = [agent for agent in self._agents.values() if agent.process is not None]
        for agent in running:
            self._signal(agent, signal.SIGTERM)
        deadline = time.monotonic() + keeper.GRACE_SECONDS
        for agent in running:
            self._reap(agent, deadline)
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()  # it removes a temporary folder
            self._keeper.wait()
            self._keeper = None

    def __enter__(self) -> ThrowawayCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def kill(self, name: str) -> None:
        """End the agent's daemon as a power cut would (SIGKILL). Its worker ends by itself when it notices."""
        agent = self._agents[name]
        self._signal(agent, signal.SIGKILL)
        self._reap(agent, time.monotonic() + keeper.GRACE_SECONDS)

    def restart(self, name: str) -> None:
        """Start the agent again, with the same identity at the same address; ends it first if it runs."""
        agent = self._agents[name]
        if agent.process is not None:
            self._signal(agent, signal.SIGTERM)
            self._reap(agent, time.monotonic() + keeper.GRACE_SECONDS)
        self._launch(agent, threading.Event())

    # --- one agent ----------------------------------------------------------------------------------------------------

    def _launch(self, agent: _Agent, cancel: threading.Event) -> None:
        """Start the daemon and wait until it says that it is ready."""
        spec = agent.spec
        arguments = ["run", "--listen", LOOPBACK, "--port", str(agent.port), "--worker-port", "0", "--json-ready"]
        arguments += ["--ready-worker", str(spec.ready_worker_seconds)]
        arguments += ["--slow-down", str(spec.slow_down), "--threads", str(spec.threads)]
        arguments += ["--interface", LOOPBACK] if self.mdns else ["--no-mdns"]
        arguments += ["--memory", spec.memory] if spec.memory is not None else []
        start_of_log = agent.log_path.stat().st_size if agent.log_path.exists() else 0
        agent.process = self._spawn(agent, arguments)
        for _ in _until(time.monotonic() + _START_SECONDS, cancel):
            ready = _ready_line(agent.log_path, start_of_log)
            if ready is not None:
                agent.port = int(ready["port"])
                return
            if not agent.living:
                raise _did_not_start(agent, f"it ended with exit code {agent.process.returncode}")
        raise _did_not_start(agent, f"it wasn't ready after {_START_SECONDS:.0f} seconds")

    def _run(self, agent: _Agent, cancel: threading.Event, *arguments: str) -> None:
        """Run one command of `edgeswarm-agent` to its end."""
        agent.process = self._spawn(agent, arguments)
        for _ in _until(time.monotonic() + _START_SECONDS, cancel):
            if not agent.living:
                break
        self._reap(agent, time.monotonic())
        code = agent.process.returncode
        if code != 0:
            raise _did_not_start(agent, f"`edgeswarm-agent {arguments[0]}` ended with exit code {code}")

    def _spawn(self, agent: _Agent, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**_plain_environment(), "PYTHONUNBUFFERED": "1", **self._environment, **agent.spec.environment}
        environment["EDGESWARM_HOME"] = str(agent.home)
        with agent.log_path.open("ab") as log:
            process = subprocess.Popen(
                [*_AGENT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the command, which ends its agents in order
            )
        self._tell_keeper(f"+{process.pid}")
        return process

    def _signal(self, agent: _Agent, number: signal.Signals) -> None:
        if agent.process is not None:
            agent.process.send_signal(number)  # does nothing for a process that has been reaped

    def _reap(self, agent: _Agent, deadline: float) -> None:
        process = agent.process
        if process is None:
            return
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._tell_keeper(f"-{process.pid}")

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _start_keeper(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, *([str(self.folder)] if self._temporary else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _tell_keeper(self, line: str) -> None:
        with self._keeper_lock:
            if self._keeper is not None:
                pipe: IO[bytes] | None = self._keeper.stdin
                assert pipe is not None
                pipe.write(f"{line}\n".encode())
                pipe.flush()


def _plain_environment() -> dict[str, str]:
    """This process's environment without its own edgeswarm settings, which are for another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EDGESWARM_")}


def _until(deadline: float, cancel: threading.Event) -> Iterator[None]:
    """Again and again until the deadline; raises EdgeswarmError (INTERRUPTED) when cancelled."""
    while time.monotonic() < deadline:
        yield
        if cancel.wait(_LOOK_EVERY_SECONDS):
            raise EdgeswarmError(ErrorCode.INTERRUPTED, "The start of the throw-away cluster was interrupted.")


def _ready_line(log_path: Path, start: int) -> dict[str, Any] | None:
    """What the agent printed when it was ready: {"node_id", "address", "port"}; None while it hasn't."""
    with log_path.open("rb") as log:
        log.seek(start)
        for line in log:
            if line.startswith(b'{"node_id"') and line.endswith(b"}\n"):
                ready: dict[str, Any] = json.loads(line)
                return ready
    return None


def _did_not_start(agent: _Agent, what: str) -> EdgeswarmError:
    lines = agent.log_path.read_text(errors="replace").splitlines()
    return EdgeswarmError(
        ErrorCode.DEVICE_UNREACHABLE,
        f"The agent {agent.spec.name} of the throw-away cluster did not start: {what}.",
        "See what it said, below.",
        detail="\n".join(lines[-_LOG_LINES_IN_AN_ERROR:]),
    )
