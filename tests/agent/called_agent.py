"""A real daemon in this process, called over real mTLS as a coordinator calls it; its workers are stand-ins."""

from __future__ import annotations

import hashlib
import io
import queue
import tarfile
import threading
from collections.abc import Callable
from typing import Any

import grpc

from edgeswarm.config import AgentSettings
from edgeswarm.security.identity import Identity
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc
from edgeswarm_agent.daemon import Daemon

from .processes import Cluster, stand_in

SECONDS = 20.0


class Agent:
    """A daemon and a channel to it. Calls raise EdgeswarmError, as a coordinator's do."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        mode: str,
        *,
        ready_worker_seconds: float = 0.0,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.identity, self.folders = cluster.agent(name)
        settings = AgentSettings(
            port=0,
            listen_address="127.0.0.1",
            advertise=False,
            slow_down=3.0,
            threads=1,
            ready_worker_seconds=ready_worker_seconds,
            memory_limit_bytes=memory_limit_bytes,
        )
        self.said: list[str] = []
        self.daemon = Daemon(settings, self.folders, log=self.said.append, worker_command=stand_in(mode))
        self.daemon.start()
        self.node_id = self.identity.node_id
        self.channel = self.dial(cluster.operator)

    def dial(self, identity: Identity) -> grpc.Channel:
        return secure_channel(self.daemon.address, identity=identity, node_id=self.node_id)

    def call(self, method: str, request: Any, channel: grpc.Channel | None = None) -> Any:
        stub = agent_pb2_grpc.AgentStub(channel or self.channel)  # type: ignore[no-untyped-call]
        try:
            return getattr(stub, method)(request, timeout=SECONDS)
        except grpc.RpcError as error:
            raise error_of_call(error, device=self.node_id) from error

    def describe(self) -> agent_pb2.DeviceDescription:
        description: agent_pb2.DeviceDescription = self.call("Describe", agent_pb2.DescribeRequest())
        return description

    def reserve(self, name: str = "digits-1", *, lease_seconds: float = 30.0, bundle: str = "") -> bool:
        request = agent_pb2.ReserveRequest(
            job=job(name), description="ada on desk", lease_seconds=lease_seconds, bundle_sha256=bundle
        )
        return bool(self.call("Reserve", request).has_bundle)

    def prepare(
        self, bundle: str, *, name: str = "digits-1", epoch: int = 1, job_file: str = "", data_mode: str = ""
    ) -> agent_pb2.PrepareReply:
        training = agent_pb2.TrainingSettings(bundle_sha256=bundle, job_file=job_file, data_mode=data_mode)
        reply: agent_pb2.PrepareReply = self.call(
            "Prepare", agent_pb2.PrepareRequest(job=job(name, epoch=epoch), training=training)
        )
        return reply

    def load_ahead(self, bundle: str, job_file: str, *, name: str = "digits-1") -> None:
        self.call("LoadAhead", agent_pb2.LoadAheadRequest(job=job(name), bundle_sha256=bundle, job_file=job_file))

    def start(self, first_round: int = 0, end_round: int = 2, *, epoch: int = 1, evaluate: bool = False) -> None:
        start = agent_pb2.StartRequest(
            job=job(epoch=epoch), first_round=first_round, end_round=end_round, evaluate=evaluate
        )
        self.call("Start", start)

    def release(self, name: str = "digits-1", *, term: int = 1) -> None:
        self.call("Release", agent_pb2.ReleaseRequest(job=job(name, term=term), reason="it is done"))

    def put(self, archive: bytes, sha256: str | None = None, *, parts: int = 3) -> int:
        name = hashlib.sha256(archive).hexdigest() if sha256 is None else sha256
        step = len(archive) // parts + 1
        messages = [agent_pb2.BundlePart(job=job(), sha256=name)]
        messages += [agent_pb2.BundlePart(data=archive[at : at + step]) for at in range(0, len(archive), step)]
        return int(self.call("PutBundle", iter(messages)).bytes)

    def close(self) -> None:
        self.channel.close()
        self.daemon.stop()


class Watch:
    """An open Watch and what has come of it, read by a thread."""

    def __init__(self, agent: Agent, name: str = "digits-1", *, term: int = 1) -> None:
        stub = agent_pb2_grpc.AgentStub(agent.channel)  # type: ignore[no-untyped-call]
        self.call = stub.Watch(agent_pb2.WatchRequest(job=job(name, term=term)))
        self.events: queue.SimpleQueue[agent_pb2.AgentEvent | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for event in self.call:
                self.events.put(event)
        except grpc.RpcError:
            # Cancelled by the test.
            pass
        self.events.put(None)

    def next(self, kind: str, accept: Callable[[Any], bool] = lambda _: True) -> Any:
        """The next event of this kind."""
        while (event := self.events.get(timeout=SECONDS)) is not None:
            if event.WhichOneof("event") == kind and accept(getattr(event, kind)):
                return getattr(event, kind)
        raise AssertionError("the stream ended")

    def wait_for_end(self) -> None:
        while self.events.get(timeout=SECONDS) is not None:
            pass


def job(name: str = "digits-1", *, term: int = 1, epoch: int = 0) -> agent_pb2.JobReference:
    return agent_pb2.JobReference(job_id=name, term=term, epoch=epoch)


def archive_of(**files: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


StartAgent = Callable[..., Agent]
