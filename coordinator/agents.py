"""AgentLink: one agent that answered, and the calls that the coordinator makes to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.printable import printable
from edgeswarm.security.identity import Identity
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc

from .device import Device

DESCRIBE_SECONDS = 3.0
PROBE_SECONDS = 1.0
RELEASE_SECONDS = 3.0
_BUNDLE_PART_BYTES = 512 * 1024

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class AgentLink:
    """A connected agent. instance: differs between two boxes that carry one node id. round_trip_seconds: of Describe."""

    device: Device
    channel: grpc.Channel
    protocol_version: int
    instance: str
    round_trip_seconds: float
    stub: agent_pb2_grpc.AgentStub = field(repr=False)

    @classmethod
    def open(
        cls, address: str, *, node_id: str, identity: Identity, timeout_seconds: float = DESCRIBE_SECONDS
    ) -> AgentLink:
        """Connect to the agent `node_id` at `address` and ask what it is.

        Raises EdgeswarmError: DEVICE_UNREACHABLE, or TRUST where another node answers there.
        """
        channel = secure_channel(address, identity=identity, node_id=node_id)
        stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
        before = time.time()
        try:
            description = stub.Describe(agent_pb2.DescribeRequest(), timeout=timeout_seconds)
        except grpc.RpcError as error:
            channel.close()
            raise error_of_call(error, device=f"{node_id} ({address})", doing="ask what it is") from error
        after = time.time()
        return cls(
            device=device_of(description, node_id=node_id, address=address, asked_at=(before + after) / 2),
            channel=channel,
            protocol_version=description.protocol_version,
            instance=description.instance,
            round_trip_seconds=after - before,
            stub=stub,
        )

    def described_again(self) -> AgentLink:
        """The same connection with what the agent is now. Raises EdgeswarmError."""
        request = agent_pb2.DescribeRequest()
        description = self.call("Describe", request, timeout_seconds=DESCRIBE_SECONDS, doing="ask what it is")
        device = device_of(description, node_id=self.node_id, address=self.address, asked_at=time.time())
        return replace(self, device=device)

    @property
    def node_id(self) -> str:
        return self.device.node_id

    @property
    def address(self) -> str:
        """host:port of its control service, as we reach it."""
        return self.device.address

    def call(self, method: str, request: Any, *, timeout_seconds: float, doing: str) -> Any:
        """One control call. doing: what for, for the message. Raises EdgeswarmError naming the device."""
        try:
            return getattr(self.stub, method)(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise error_of_call(error, device=self.node_id, doing=doing) from error

    def stream(self, method: str, request: Any, *, timeout_seconds: float | None, doing: str) -> Iterator[Any]:
        """A control call that answers with a stream; errors as in `call`."""
        try:
            yield from getattr(self.stub, method)(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise error_of_call(error, device=self.node_id, doing=doing) from error

    def answers(self) -> bool:
        """Whether the agent answers a small call within a second, over a connection that is made anew where needed."""
        deadline = time.monotonic() + PROBE_SECONDS
        for _ in range(2):  # the first may find that the connection is dead, as behind a machine's sleep
            try:
                self.stub.Ping(agent_pb2.PingRequest(), timeout=max(0.05, deadline - time.monotonic()))
                return True
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    return False
        return False

    def put_bundle(
        self,
        job: agent_pb2.JobReference,
        *,
        sha256: str,
        archive: bytes,
        timeout_seconds: float,
        sent: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Send the user's files. sent: told how many bytes have left, each time that the next part is asked for."""

        def parts() -> Iterator[agent_pb2.BundlePart]:
            yield agent_pb2.BundlePart(job=job, sha256=sha256, data=archive[:_BUNDLE_PART_BYTES])
            for start in range(_BUNDLE_PART_BYTES, len(archive), _BUNDLE_PART_BYTES):
                sent(start)
                yield agent_pb2.BundlePart(data=archive[start : start + _BUNDLE_PART_BYTES])

        self.call("PutBundle", parts(), timeout_seconds=timeout_seconds, doing="send the job's files")

    def load_ahead(self, job: agent_pb2.JobReference, *, sha256: str, job_file: str, timeout_seconds: float) -> None:
        """The job's files are there: the worker may load them while the model is exported. What hinders is told by Prepare, which
        does all of it once more.
        """
        request = agent_pb2.LoadAheadRequest(job=job, bundle_sha256=sha256, job_file=job_file)
        with contextlib.suppress(EdgeswarmError):
            self.call("LoadAhead", request, timeout_seconds=timeout_seconds, doing="load the job")

    def release(self, job: agent_pb2.JobReference, *, reason: str) -> EdgeswarmError | None:
        """End the job there. Returns what went wrong instead of raising it: the other devices have to be freed, too."""
        request = agent_pb2.ReleaseRequest(job=job, reason=reason)
        try:
            self.call("Release", request, timeout_seconds=RELEASE_SECONDS, doing="free the device")
        except EdgeswarmError as error:
            return error
        return None

    def error_of(self, failure: Exception, *, doing: str) -> EdgeswarmError:
        """What an exception of a call to this device means."""
        if isinstance(failure, grpc.RpcError):
            return error_of_call(failure, device=self.node_id, doing=doing)
        if isinstance(failure, EdgeswarmError):
            return failure
        return EdgeswarmError(
            ErrorCode.INTERNAL,
            f"{type(failure).__name__}: {failure} ({self.node_id}, {doing})",
            "Look at the agent's log there, and report it with that.",
        )

    def close(self) -> None:
        """Ends the connection and every call on it."""
        self.channel.close()


def device_of(description: agent_pb2.DeviceDescription, *, node_id: str, address: str, asked_at: float) -> Device:
    """The description as plain data. asked_at: our clock in the middle of the call, seconds since 1970."""
    return Device(
        node_id=node_id,
        address=address,
        version=printable(description.version),
        board=printable(description.board),
        platform=printable(description.platform),
        hardware={printable(name): printable(value) for name, value in description.hardware.items()},
        hardware_key=printable(description.hardware_key),
        cpu_cores=description.cpu_cores,
        memory_total_bytes=description.memory_total_bytes,
        memory_budget_bytes=description.memory_budget_bytes,
        torch_version=printable(description.torch_version),
        accelerator=printable(description.accelerator) or "cpu",
        slow_down=description.slow_down or 1.0,
        busy_with_job=printable(description.busy_with_job),
        busy_since=printable(description.busy_since),
        clock_offset_seconds=description.clock_seconds - asked_at if description.clock_seconds else 0.0,
    )
