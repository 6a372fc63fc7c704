"""The link from this machine to an agent, measured with streams as those on which frames and samples travel.

latency: half of the median round trip of `Ping`, some twenty of them.
bandwidth, and what a byte costs each end's processor: bytes into the agent's sink (agent/link_sink.py), until it has answered
that all are there. A first section warms up TCP's window and is not counted:

    256 KiB ──▶ ... ──▶ answer | 256 KiB ──▶ 256 KiB ──▶ ... ──▶ answer
               warm-up         | counted: bytes / (time - one round trip)

On a link of many small packets a byte costs a processor several times what it costs over loopback: it is measured here.
"""

from __future__ import annotations

import statistics
import struct
import time
from dataclasses import dataclass

import grpc

from ..errors import EdgeswarmError, ErrorCode
from ..security.identity import Identity
from .byte_stream import ByteStream, at_port, open_stream
from .call_errors import error_of_call
from .channel import raw_unary, secure_channel
from .frames import SIZE
from .v1 import agent_pb2, agent_pb2_grpc, data_pb2

# The calls of the far end, and what its answer holds: bytes, CPU seconds.
AGENT_SERVICE = "edgeswarm.wire.v1.Agent"
OPEN, CLOSE_SECTION = "OpenSink", "CloseSection"
SECTION = struct.Struct("<Qd")
MESSAGE_BYTES = 256 * 1024

ROUND_TRIPS = 20
DEFAULT_SECONDS = 1.0
LONGEST_SECONDS = 30.0
MOST_BYTES = 64 << 20  # half a second at 1 Gbit/s
_WARM_UP_PART = 0.25
_CALL_SECONDS = 10.0


@dataclass(frozen=True)
class _Section:
    """seconds: from its first byte to the answer. *_cpu_seconds: of the whole process at either end."""

    bytes: int
    seconds: float
    send_cpu_seconds: float
    receive_cpu_seconds: float


def measure_link(
    *, identity: Identity, node_id: str, address: str, seconds: float = DEFAULT_SECONDS
) -> agent_pb2.LinkMeasurement:
    """Measures the link to the agent `node_id` at `address` ("host:port") for about `seconds`.

    seconds: 0 or less means the default. Raises: EdgeswarmError that names the other device.
    """
    duration = min(seconds, LONGEST_SECONDS) if seconds > 0 else DEFAULT_SECONDS
    channel = secure_channel(address, identity=identity, node_id=node_id)
    try:
        round_trip = _round_trip_seconds(channel)
        section = _counted_section(channel, duration, identity=identity, node_id=node_id, address=address)
    except grpc.RpcError as error:
        raise error_of_call(error, device=node_id, doing="measure the link to it") from error
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.LINK_BROKEN,
            f"The link to {node_id} broke while it was measured ({error.strerror or error}).",
            f"Look whether {node_id} is switched on and reachable, then try again.",
        ) from error
    finally:
        channel.close()
    # The last byte's way there and the answer's way back are latency, not bandwidth.
    busy = max(section.seconds - round_trip, section.seconds / 10)
    return agent_pb2.LinkMeasurement(
        bandwidth_bytes_per_second=section.bytes / busy,
        latency_seconds=round_trip / 2,
        sent_bytes=section.bytes,
        send_byte_cpu_seconds=section.send_cpu_seconds / section.bytes,
        receive_byte_cpu_seconds=section.receive_cpu_seconds / section.bytes,
    )


def _round_trip_seconds(channel: grpc.Channel) -> float:
    """The median. The first trip makes the connection and is not one of them."""
    stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated code has no types
    stub.Ping(agent_pb2.PingRequest(), timeout=_CALL_SECONDS, wait_for_ready=False)
    trips: list[float] = []
    for _ in range(ROUND_TRIPS):
        started = time.perf_counter()
        stub.Ping(agent_pb2.PingRequest(), timeout=_CALL_SECONDS)
        trips.append(time.perf_counter() - started)
    return statistics.median(trips)


def _counted_section(
    channel: grpc.Channel, seconds: float, *, identity: Identity, node_id: str, address: str
) -> _Section:
    answer = raw_unary(channel, AGENT_SERVICE, OPEN)(b"", timeout=_CALL_SECONDS)
    ticket = data_pb2.StreamTicket.FromString(answer)
    stream = open_stream(at_port(address, ticket.port), identity=identity, node_id=node_id)
    try:
        stream.send(ticket.ticket)
        _send_for(stream, channel, ticket.ticket, seconds * _WARM_UP_PART)
        return _send_for(stream, channel, ticket.ticket, seconds)
    finally:
        stream.close()


def _send_for(stream: ByteStream, channel: grpc.Channel, ticket: bytes, seconds: float) -> _Section:
    """One section: at least one message, at most MOST_BYTES, which a fast link has soon carried."""
    size, message = SIZE.pack(MESSAGE_BYTES), bytes(MESSAGE_BYTES)
    started, computed = time.perf_counter(), time.process_time()
    stream.send(size, message)
    sent_bytes = MESSAGE_BYTES
    while time.perf_counter() - started < seconds and sent_bytes < MOST_BYTES:
        stream.send(size, message)
        sent_bytes += MESSAGE_BYTES
    stream.send(SIZE.pack(0))
    computed = time.process_time() - computed
    answer = raw_unary(channel, AGENT_SERVICE, CLOSE_SECTION)(ticket, timeout=seconds + _CALL_SECONDS)
    elapsed = time.perf_counter() - started
    count, receive_cpu_seconds = SECTION.unpack(answer)
    return _Section(count, elapsed, computed, receive_cpu_seconds)
