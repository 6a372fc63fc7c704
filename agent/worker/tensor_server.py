"""What others reach of a worker: frames come in from other workers, layers of its state go out.

other worker -- Tensors/Open --> gRPC server       the epoch is right, the plan has this stream: a ticket
             -- ticket, frames --> listener --> mailbox
coordinator  -- Layers/Fetch --> gRPC server --> layer       the operator alone
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import grpc

from edgeswarm.config import host_and_port, join_host_and_port
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import TICKET_BYTES, ByteStream, StreamListener
from edgeswarm.wire.channel import (
    peer_node_id,
    raw_service,
    raw_unary_handler,
    raw_unary_stream_handler,
    require_role,
    secure_server,
)
from edgeswarm.wire.fetch import announce_bytes
from edgeswarm.wire.frames import HEADER_BYTES, SIZE, unpack_header
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .epoch_state import EpochSwitch
from .errors import LinkBrokenError
from .mailbox import Mailbox

NOT_YET = "not yet"

# Layers that are fetched at once, and a few more for those who ask for a ticket; calls beyond it wait.
CALL_THREADS = 12

# How many bytes a layer has, and the messages that carry them.
LayerReader = Callable[[data_pb2.FetchLayerRequest], tuple[int, Iterator[bytes]]]


@dataclass(frozen=True)
class InboundEpoch:
    """The epoch whose streams this worker takes."""

    job_id: str
    epoch: int
    senders: Collection[str]
    mailbox: Mailbox
    switch: EpochSwitch


class TensorServer:
    """Serves Tensors/Open and Layers/Fetch, and takes frames. It lives as long as the worker; epochs come and go.

    address: "host:port" of the gRPC server; frames come in on the next port. own_address: by which this worker itself reaches
    the server.
    """

    def __init__(self, identity: Identity, *, address: str) -> None:
        self._lock = threading.Lock()
        self._inbound: InboundEpoch | None = None
        self._read_layer: LayerReader | None = None
        self._tickets: dict[bytes, tuple[str, InboundEpoch]] = {}
        handlers = (
            raw_service("edgeswarm.wire.v1.Tensors", {"Open": raw_unary_handler(self._open)}),
            raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(self._fetch)}),
        )
        self._server, self.port = secure_server(identity, address=address, workers=CALL_THREADS, handlers=handlers)
        self._listener = StreamListener(identity, behind=address, taken=self._take_frames)
        host = host_and_port(address)[0]
        self.own_address = join_host_and_port("127.0.0.1" if host in ("0.0.0.0", "::", "") else host, self.port)
        self._server.start()

    def open_epoch(self, inbound: InboundEpoch) -> None:
        """Takes streams of this epoch from now on."""
        with self._lock:
            self._inbound = inbound
            self._tickets.clear()

    def forget_epoch(self) -> None:
        """No epoch any more: to streams of whichever comes next the answer is `not yet`, as before the first one."""
        with self._lock:
            self._inbound = None
            self._tickets.clear()

    def hold_layers(self, read_layer: LayerReader | None) -> None:
        """From now on layers are read with this; None while there is no state to give."""
        with self._lock:
            self._read_layer = read_layer

    def stop(self) -> None:
        self._listener.stop()
        self._server.stop(grace=0).wait(timeout=1)

    def _open(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """A ticket for a stream from the caller. Raises EdgeswarmError (STALE_CALL) where none is to come."""
        sender, job = peer_node_id(context), agent_pb2.JobReference.FromString(request)
        with self._lock:
            inbound = self._inbound
            if inbound is None or (inbound.job_id == job.job_id and inbound.epoch < job.epoch):
                raise EdgeswarmError(ErrorCode.STALE_CALL, NOT_YET)
            if inbound.job_id != job.job_id or inbound.epoch > job.epoch:
                raise EdgeswarmError(ErrorCode.STALE_CALL, f"epoch {job.epoch} of {job.job_id} is over")
            if sender not in inbound.senders:
                raise EdgeswarmError(ErrorCode.STALE_CALL, f"the plan has no stream from {sender} to this device")
            ticket = secrets.token_bytes(TICKET_BYTES)
            self._tickets[ticket] = (sender, inbound)
        return data_pb2.StreamTicket(port=self._listener.port, ticket=ticket).SerializeToString()

    def _take_frames(self, stream: ByteStream) -> None:
        """Until the stream or its epoch ends. One without a ticket of its sender's is closed at once."""
        ticket = stream.receive_ticket()
        with self._lock:
            sender, inbound = self._tickets.pop(ticket, ("", None))
        if inbound is None or sender != stream.peer:
            return
        switch = inbound.switch
        try:
            _deliver_all(stream, sender, inbound)
        except EOFError:
            switch.fail(LinkBrokenError(sender, "it closed its stream"))
        except OSError as error:
            switch.fail(LinkBrokenError(sender, error.strerror or str(error)))
        except ValueError as error:
            switch.fail(
                EdgeswarmError(
                    ErrorCode.WORKER_FAILED,
                    f"{sender} sent what its plan does not say: {error}.",
                    "Install the same version of edgeswarm on all devices.",
                )
            )
        except Exception as error:
            # No memory for a frame, say: whoever waits for it shall know why it doesn't come.
            switch.fail(error)
            raise

    def _fetch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """A layer, for who gathers them. Raises EdgeswarmError (TRUST) for another device, STALE_CALL where there is none."""
        require_role(context, Role.OPERATOR)
        with self._lock:
            read_layer = self._read_layer
        if read_layer is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "this worker holds no finished state now")
        size, chunks = read_layer(data_pb2.FetchLayerRequest.FromString(request))
        announce_bytes(context, size)
        yield from chunks


def _deliver_all(stream: ByteStream, sender: str, inbound: InboundEpoch) -> None:
    """Each message's bytes go from the stream to where they belong; returns when nobody takes anything any more."""
    head = bytearray(SIZE.size + HEADER_BYTES)
    view = memoryview(head)
    while True:
        stream.receive_into(view)
        if inbound.switch.is_thrown:
            return
        (message_bytes,) = SIZE.unpack_from(head)
        header = unpack_header(view[SIZE.size :], message_bytes)
        inbound.mailbox.deliver(sender, header, message_bytes - HEADER_BYTES, fill=stream.receive_into)
