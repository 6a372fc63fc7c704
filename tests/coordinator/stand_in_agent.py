"""An Agent service over real gRPC and real mTLS that does what a test tells it: for faults that a real agent won't give."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import secure_server
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc
from edgeswarm.wire.version import PROTOCOL_VERSION


class StandInAgent(agent_pb2_grpc.AgentServicer):
    """Answers on 127.0.0.1. events: what Watch sends, put there by the test. reserved, renewed, released: the jobs
    that were, and whose workers.

    may_answer: while it is not set, what is reserved gets no answer.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        instance: str = "",
        protocol_version: int = PROTOCOL_VERSION,
        clock_offset_seconds: float = 0.0,
        busy_with_job: str = "",
    ) -> None:
        self.identity = identity
        self.instance = instance
        self.protocol_version = protocol_version
        self.clock_offset_seconds = clock_offset_seconds
        self.busy_with_job = busy_with_job
        self.reserved: list[str] = []
        self.renewed: list[str] = []
        self.released: list[str] = []
        self.bundle = b""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.watched = threading.Event()
        self.events: queue.Queue[agent_pb2.AgentEvent | None] = queue.Queue()
        self._server, self.port = secure_server(identity, address="127.0.0.1:0", workers=8)
        agent_pb2_grpc.add_AgentServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, authority: CertificateAuthority, node_id: str, **options: object) -> StandInAgent:
        return cls(authority.issue(node_id=node_id, role=Role.AGENT), **options)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> StandInAgent:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """As a daemon that was killed: every stream breaks, nobody answers."""
        self.events.put(None)
        self._server.stop(None).wait()

    def send(self, **event: object) -> None:
        self.events.put(agent_pb2.AgentEvent(clock_seconds=time.time(), **event))  # type: ignore[arg-type]

    # --- the service --------------------------------------------------------------------------------------------------

    def Describe(
        self, request: agent_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> agent_pb2.DeviceDescription:
        return agent_pb2.DeviceDescription(
            node_id=self.identity.node_id,
            version="9.9",
            protocol_version=self.protocol_version,
            instance=self.instance,
            hardware_key="key",
            memory_budget_bytes=1 << 30,
            clock_seconds=time.time() + self.clock_offset_seconds,
            busy_with_job=self.busy_with_job,
        )

    def Ping(self, request: agent_pb2.PingRequest, context: grpc.ServicerContext) -> agent_pb2.PingReply:
        return agent_pb2.PingReply()

    def Reserve(self, request: agent_pb2.ReserveRequest, context: grpc.ServicerContext) -> agent_pb2.ReserveReply:
        if self.busy_with_job:
            raise EdgeswarmError(ErrorCode.DEVICE_BUSY, f"{self.identity.node_id} is busy with {self.busy_with_job}.")
        self.reserved.append(request.job.job_id)
        self.may_answer.wait(10.0)
        return agent_pb2.ReserveReply(has_bundle=request.bundle_sha256 == "known")

    def RenewWorker(
        self, request: agent_pb2.RenewWorkerRequest, context: grpc.ServicerContext
    ) -> agent_pb2.RenewWorkerReply:
        self.renewed.append(request.job.job_id)
        return agent_pb2.RenewWorkerReply()

    def PutBundle(
        self, request_iterator: Iterator[agent_pb2.BundlePart], context: grpc.ServicerContext
    ) -> agent_pb2.BundleReceipt:
        self.bundle = b"".join(part.data for part in request_iterator)
        return agent_pb2.BundleReceipt()

    def Watch(self, request: agent_pb2.WatchRequest, context: grpc.ServicerContext) -> Iterator[agent_pb2.AgentEvent]:
        self.watched.set()
        while (event := self.events.get()) is not None:
            yield event

    def Release(self, request: agent_pb2.ReleaseRequest, context: grpc.ServicerContext) -> agent_pb2.ReleaseReply:
        self.released.append(request.job.job_id)
        self.events.put(None)
        return agent_pb2.ReleaseReply()
