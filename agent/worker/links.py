"""The streams from this worker to others, one for each peer that the plan has it send to."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import grpc

from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import ByteStream, at_port, open_stream
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import raw_unary, secure_channel
from edgeswarm.wire.frames import SIZE
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .errors import LinkBrokenError
from .tensor_server import NOT_YET

# Between two attempts, twice as long each time: who still fetches its layers may take minutes, and each question costs it time.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
CALL_SECONDS = 10.0
# May pass: the peer's processor or its network is busy.
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class OutboundLinks:
    """Opens and watches the streams of one epoch. What travels on them is the egress scheduler's business.

    Each has a thread that writes what the scheduler gives it, and one that waits for its end.
    """

    def __init__(
        self, identity: Identity, *, job_id: str, epoch: int, egress: EgressScheduler, switch: EpochSwitch
    ) -> None:
        self._identity = identity
        self._request = agent_pb2.JobReference(job_id=job_id, epoch=epoch).SerializeToString()
        self._egress = egress
        self._switch = switch
        self._streams: list[ByteStream] = []

    def open(self, addresses: Mapping[str, str], *, timeout_seconds: float) -> None:
        """Opens a stream to every peer (node id to host:port) and returns when all are taken.

        A peer that isn't in this epoch yet is asked again, for as long as it says so: it may fetch more layers than this
        worker. timeout_seconds: for one that doesn't answer. Raises EdgeswarmError that names the peer which can't be reached,
        LinkBrokenError where its stream breaks at once.
        """
        for peer in addresses:
            self._egress.open(peer)
        for peer, address in addresses.items():
            ticket = self._ticket(peer, address, timeout_seconds)
            try:
                stream = open_stream(at_port(address, ticket.port), identity=self._identity, node_id=peer)
                self._streams.append(stream)
                stream.send(ticket.ticket)
            except OSError as error:
                raise LinkBrokenError(peer, error.strerror or str(error)) from error
            for work in (self._write, self._watch):
                threading.Thread(target=work, args=(peer, stream), name=f"to-{peer}", daemon=True).start()

    def close(self) -> None:
        """Ends all streams. Idempotent."""
        self._egress.close()
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _ticket(self, peer: str, address: str, timeout_seconds: float) -> data_pb2.StreamTicket:
        deadline = time.monotonic() + timeout_seconds
        pause_seconds = FIRST_PAUSE_SECONDS
        channel = secure_channel(address, identity=self._identity, node_id=peer)
        try:
            while True:
                self._switch.check()
                try:
                    answer = raw_unary(channel, "edgeswarm.wire.v1.Tensors", "Open")(
                        self._request, timeout=CALL_SECONDS
                    )
                    return data_pb2.StreamTicket.FromString(answer)
                except grpc.RpcError as error:
                    if _says_not_yet(error):
                        deadline = time.monotonic() + timeout_seconds
                    elif time.monotonic() > deadline or error.code() not in _NO_ANSWER:
                        raise error_of_call(error, device=peer, doing="open its tensor stream") from error
                self._switch.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        finally:
            channel.close()

    def _write(self, peer: str, stream: ByteStream) -> None:
        try:
            while (chunk := self._egress.next_chunk(peer)) is not None:
                # The header first: who reads it then knows how much to sleep for.
                stream.send(SIZE.pack(chunk.size_bytes) + chunk.header, chunk.data)
                del chunk  # which holds all of its tensor: the next one may be long in coming
        except OSError as error:
            self._switch.fail(LinkBrokenError(peer, error.strerror or str(error)))
        except Exception as error:
            # No memory for a chunk, say: whoever waits for the round shall know why it doesn't end.
            self._switch.fail(error)
            raise

    def _watch(self, peer: str, stream: ByteStream) -> None:
        self._switch.fail(LinkBrokenError(peer, stream.wait_for_end()))


def _says_not_yet(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.FAILED_PRECONDITION and (error.details() or "").startswith(NOT_YET)
