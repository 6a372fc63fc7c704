"""The far end of a link's measurement: takes bytes as a worker takes frames, and says how many came and what they cost it.

edgeswarm/wire/link_probe.py is the near end.

OpenSink   --> ticket            a gRPC call
stream:  ticket | size, bytes | size, bytes | ... | 0 | size, bytes | ...      each 0 ends a section
CloseSection(ticket) --> bytes of the section, CPU seconds of this process     waits until all of it is there
"""

from __future__ import annotations

import queue
import secrets
import threading
import time

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import TICKET_BYTES, ByteStream, StreamListener
from edgeswarm.wire.channel import peer_node_id, raw_service, raw_unary_handler
from edgeswarm.wire.frames import SIZE
from edgeswarm.wire.link_probe import AGENT_SERVICE, CLOSE_SECTION, MESSAGE_BYTES, OPEN, SECTION
from edgeswarm.wire.v1 import data_pb2

# Behind the agent's port: the worker's two lie in between.
PORT_OFFSET = 3
_SECTION_SECONDS = 30.0
_MOST_SINKS = 64
_MOST_SECTIONS = 4  # that nobody has asked for yet


class LinkSink:
    """address: "host:port" of the agent."""

    def __init__(self, identity: Identity, *, address: str) -> None:
        self._lock = threading.Lock()
        # By ticket: who may use it, and the sections that are whole.
        self._sinks: dict[bytes, tuple[str, queue.Queue[bytes]]] = {}
        self._listener = StreamListener(identity, behind=address, offset=PORT_OFFSET, taken=self._take)

    def handler(self) -> grpc.GenericRpcHandler:
        """The calls, to be added to the agent's service."""
        methods = {OPEN: raw_unary_handler(self._open), CLOSE_SECTION: raw_unary_handler(self._close_section)}
        return raw_service(AGENT_SERVICE, methods)

    def stop(self) -> None:
        self._listener.stop()

    def _open(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            if len(self._sinks) >= _MOST_SINKS:
                del self._sinks[next(iter(self._sinks))]  # the oldest: whoever has it has gone
            self._sinks[ticket] = (peer_node_id(context), queue.Queue(_MOST_SECTIONS))
        return data_pb2.StreamTicket(port=self._listener.port, ticket=ticket).SerializeToString()

    def _close_section(self, ticket: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            owner, sections = self._sinks.get(ticket, ("", None))
        if sections is None or owner != peer_node_id(context):
            raise EdgeswarmError(ErrorCode.STALE_CALL, "nobody measures a link with this ticket")
        try:
            return sections.get(timeout=_SECTION_SECONDS)
        except queue.Empty:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "the section does not end") from None

    def _take(self, stream: ByteStream) -> None:
        """Until the stream ends; one without a ticket of its sender's is closed at once."""
        ticket = stream.receive_ticket()
        with self._lock:
            owner, sections = self._sinks.get(ticket, ("", None))
        if sections is None or owner != stream.peer:
            return
        try:
            while True:
                sections.put(SECTION.pack(*_section(stream)), timeout=_SECTION_SECONDS)
        except queue.Full:
            pass  # who sends them doesn't ask what came: the stream is closed
        finally:
            with self._lock:
                self._sinks.pop(ticket, None)


def _section(stream: ByteStream) -> tuple[int, float]:
    """(bytes, CPU seconds from its first bytes to its end). Raises EOFError at the stream's end, ValueError for nonsense."""
    head, room = memoryview(bytearray(SIZE.size)), memoryview(bytearray(MESSAGE_BYTES))
    count, began = 0, None
    while True:
        stream.receive_into(head)
        (size,) = SIZE.unpack(head)
        began = time.process_time() if began is None else began
        if size == 0:
            return count, time.process_time() - began
        if size > MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes")
        stream.receive_into(room[:size])
        count += size
