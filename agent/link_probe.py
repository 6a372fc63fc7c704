"""The link from this device to another agent, measured over the same mTLS channels that training uses.

latency: half of the median round trip of `Ping`, some twenty of them.
bandwidth: raw bytes into the other's `Sink`, until it has answered that all are there. A first call warms up TCP's
window and is not counted:

    Sink ──256 KiB──▶ ... ──▶ answer | Sink ──256 KiB──▶ 256 KiB ──▶ ... ──▶ answer
               warm-up               | counted: bytes / (time - one round trip)
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Iterator

import grpc

from edgeswarm.security.identity import Identity
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import RawHandler, raw_service, raw_stream_unary, raw_stream_unary_handler, secure_channel
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc

AGENT_SERVICE = "edgeswarm.wire.v1.Agent"
ROUND_TRIPS = 20
MESSAGE_BYTES = 256 * 1024
DEFAULT_SECONDS = 1.0
LONGEST_SECONDS = 30.0
_WARM_UP_PART = 0.25
_CALL_SECONDS = 10.0

_COUNT = struct.Struct(">Q")


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
        _send_for(channel, duration * _WARM_UP_PART)
        sent_bytes, elapsed = _send_for(channel, duration)
    except grpc.RpcError as error:
        raise error_of_call(error, device=node_id, doing="measure the link to it") from error
    finally:
        channel.close()
    # The last byte's way there and the answer's way back are latency, not bandwidth.
    busy = max(elapsed - round_trip, elapsed / 10)
    return agent_pb2.LinkMeasurement(
        bandwidth_bytes_per_second=sent_bytes / busy, latency_seconds=round_trip / 2, sent_bytes=sent_bytes
    )


def sink_handler() -> grpc.GenericRpcHandler:
    """The far end: `Sink` of the Agent service, which counts what comes and answers with the number."""
    handler: RawHandler = raw_stream_unary_handler(_sink)
    return raw_service(AGENT_SERVICE, {"Sink": handler})


def _sink(messages: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
    return _COUNT.pack(sum(len(message) for message in messages))


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


def _send_for(channel: grpc.Channel, seconds: float) -> tuple[int, float]:
    """(bytes that the sink counted, seconds from the first until its answer)."""
    message = bytes(MESSAGE_BYTES)
    started = time.perf_counter()

    def messages() -> Iterator[bytes]:
        yield message
        while time.perf_counter() - started < seconds:
            yield message

    answer = raw_stream_unary(channel, AGENT_SERVICE, "Sink")(messages(), timeout=seconds + _CALL_SECONDS)
    elapsed = time.perf_counter() - started
    (count,) = _COUNT.unpack(answer)
    return count, elapsed
