"""The agent's long-lived process: control service, announcement, and the device behind them. Never imports torch.

start: identity ─▶ port ─▶ service ─▶ mDNS          stop: mDNS goodbye ┐
                                                          worker ended ├ all at once, within 2 s
                                                          calls ended  ┘
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

from edgeswarm.config import AgentSettings, Folders, join_host_and_port
from edgeswarm.discovery import FINGERPRINT_PREFIX_LENGTH, Advertiser
from edgeswarm.listening import EVERY_ADDRESS
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import check_address_is_free, secure_server
from edgeswarm.wire.v1 import agent_pb2_grpc
from edgeswarm.wire.version import PROTOCOL_VERSION

from .bundles import BundleStore
from .device import Device
from .link_sink import LinkSink
from .only_one import OnlyOne
from .service import AgentParts, AgentService
from .supervisor import WorkerSettings
from .telemetry.hardware_now import HardwareNow
from .telemetry.memory import hidden_limit

# Open streams hold a thread each: a Watch or two, a Profile, the far ends of link probes; the rest is short.
CALL_THREADS = 24
STOP_SECONDS = 1.8


class Daemon:
    """One agent. `start` returns when it can be called; `stop` may be called from any thread, more than once.

    worker_command: what to run as the worker, for tests of its faults.
    """

    def __init__(
        self,
        settings: AgentSettings,
        folders: Folders,
        *,
        log: Callable[[str], None],
        worker_command: tuple[str, ...] | None = None,
    ) -> None:
        """Raises: EdgeswarmError (TRUST) where the device hasn't joined, AGENT_RUNNING, PORT_IN_USE, CONFIG."""
        self.identity = Identity.load(folders.agent_dir, role=Role.AGENT)
        self._hardware = HardwareNow(slow_down=settings.slow_down, threads=settings.threads)
        self._settings = settings
        self._log = log
        worker = self._worker_settings(folders)
        if worker_command is not None:
            worker = dataclasses.replace(worker, command=worker_command)
        address = join_host_and_port(settings.listen_address, settings.port)
        check_address_is_free(address)  # before the sink, which needs the host and doesn't say what is wrong with it
        self._link_sink = LinkSink(self.identity, address=address)
        self._server, self.port = secure_server(
            self.identity, address=address, workers=CALL_THREADS, handlers=[self._link_sink.handler()]
        )
        self._only_one = OnlyOne(folders.agent_dir)
        self._device = Device(
            worker, hardware=self._hardware, log=log, ready_worker_seconds=settings.ready_worker_seconds
        )
        parts = AgentParts(
            identity=self.identity,
            device=self._device,
            bundles=BundleStore(folders.cache_dir / "bundles", device=self.identity.node_id),
            hardware=self._hardware,
            memory_limit_bytes=settings.memory_limit_bytes,
        )
        agent_pb2_grpc.add_AgentServicer_to_server(AgentService(parts), self._server)  # type: ignore[no-untyped-call]
        self._advertiser: Advertiser | None = None
        self._stop_lock = threading.Lock()
        self._stopped = False

    @property
    def node_id(self) -> str:
        return self.identity.node_id

    @property
    def address(self) -> str:
        """host:port on which it listens, as it was told to (`0.0.0.0` is every address of this machine)."""
        return join_host_and_port(self._settings.listen_address, self.port)

    @property
    def cluster(self) -> str:
        """The first digits of the cluster's fingerprint, as mDNS has them."""
        return self.identity.cluster_fingerprint[:FINGERPRINT_PREFIX_LENGTH]

    def start(self) -> None:
        self._server.start()
        hidden = hidden_limit() if self._settings.memory_limit_bytes is None else ""
        if hidden:
            self._log(f"{hidden} Give the limit with --memory.")
        if self._settings.listen_address not in EVERY_ADDRESS:
            self._log(f"listens on {self.address} alone: where searching doesn't find it, give --peer {self.address}")
        if self._settings.advertise:
            self._advertiser = Advertiser(
                node_id=self.node_id,
                port=self.port,
                fingerprint=self.identity.cluster_fingerprint,
                protocol_version=PROTOCOL_VERSION,
                interfaces=self._settings.effective_interfaces,
                warn=self._log,
            )
            self._advertiser.start()

    def stop(self, reason: str = "the agent stops") -> None:
        """Takes the announcement back, ends the worker and the calls; within 2 s, whatever they do."""
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        parts: list[Callable[[], object]] = [lambda: self._device.close(reason), self._stop_server]
        if self._advertiser is not None:
            parts.append(self._advertiser.stop)
        threads = [threading.Thread(target=part, name="stop", daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STOP_SECONDS)
        self._only_one.release()

    def _stop_server(self) -> None:
        self._link_sink.stop()
        # Of what still goes on a Watch ends by itself, behind what it has to say.
        ended: threading.Event = self._server.stop(grace=0.5)
        ended.wait(STOP_SECONDS)

    def _worker_settings(self, folders: Folders) -> WorkerSettings:
        return WorkerSettings(
            device=self.identity.node_id,
            identity_folder=folders.agent_dir,
            listen=join_host_and_port(self._settings.listen_address, self._settings.effective_worker_port),
            log_path=worker_log(folders),
            slow_down=self._settings.slow_down,
            sample_folder=folders.cache_dir / "samples",
            sample_cache_bytes=self._settings.sample_cache_bytes,
        )


def worker_log(folders: Folders) -> Path:
    """Where the worker's output goes."""
    return folders.state_dir / "logs" / "worker.log"
