"""The worker's own gRPC server: frames from other workers come in, layers of this worker's state go out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import grpc

from edgeswarm.config import host_and_port, join_host_and_port
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import (
    peer_node_id,
    raw_service,
    raw_stream_unary_handler,
    raw_unary_stream_handler,
    secure_server,
)
from edgeswarm.wire.fetch import announce_bytes, serve_blob
from edgeswarm.wire.v1 import data_pb2

from .epoch_state import EpochSwitch
from .errors import LinkBrokenError
from .mailbox import Mailbox

JOB_KEY = "edgeswarm-job"
EPOCH_KEY = "edgeswarm-epoch"
NOT_YET = "not yet"
TAKEN = ("edgeswarm-stream", "taken")

# Every inbound stream holds a thread of the pool for its whole life; calls beyond it would wait unseen.
MOST_STREAMS = 128
SPARE_THREADS = 4

LayerReader = Callable[[data_pb2.FetchLayerRequest], bytes]


@dataclass(frozen=True)
class InboundEpoch:
    """The epoch whose streams this worker takes."""

    job_id: str
    epoch: int
    senders: Collection[str]
    mailbox: Mailbox
    switch: EpochSwitch


class TensorServer:
    """Serves Tensors/Send and Layers/Fetch. It lives as long as the worker; epochs come and go.

    own_address: host:port by which this worker itself reaches it.
    """

    def __init__(self, identity: Identity, *, address: str) -> None:
        self._lock = threading.Lock()
        self._inbound: InboundEpoch | None = None
        self._read_layer: LayerReader | None = None
        handlers = (
            raw_service("edgeswarm.wire.v1.Tensors", {"Send": raw_stream_unary_handler(self._send)}),
            raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(self._fetch)}),
        )
        self._server, self.port = secure_server(
            identity, address=address, workers=MOST_STREAMS + SPARE_THREADS, handlers=handlers
        )
        host = host_and_port(address)[0]
        self.own_address = join_host_and_port("127.0.0.1" if host in ("0.0.0.0", "::", "") else host, self.port)
        self._server.start()

    def open_epoch(self, inbound: InboundEpoch) -> None:
        """Takes streams of this epoch from now on. Raises EdgeswarmError for a plan with more streams than there is room."""
        if len(inbound.senders) > MOST_STREAMS:
            raise EdgeswarmError(
                ErrorCode.PLAN_INVALID,
                f"The plan has {len(inbound.senders)} devices sending to one; a worker takes {MOST_STREAMS}.",
                "Use a plan with smaller groups.",
            )
        with self._lock:
            self._inbound = inbound

    def forget_epoch(self) -> None:
        """No epoch any more: to streams of whichever comes next the answer is `not yet`, as before the first one."""
        with self._lock:
            self._inbound = None

    def hold_layers(self, read_layer: LayerReader | None) -> None:
        """From now on layers are read with this; None while there is no state to give."""
        with self._lock:
            self._read_layer = read_layer

    def stop(self) -> None:
        self._server.stop(grace=0).wait(timeout=1)

    def _send(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        sender = peer_node_id(context)
        inbound = self._inbound_for(sender, context)
        # Only now does the sender know that its stream is taken.
        context.send_initial_metadata((TAKEN,))
        try:
            for message in messages:
                if inbound.switch.is_thrown:
                    return b""  # nobody takes anything any more
                inbound.mailbox.deliver(sender, message)
        except grpc.RpcError:
            inbound.switch.fail(LinkBrokenError(sender, "its stream ended"))
        except ValueError as error:
            inbound.switch.fail(
                EdgeswarmError(
                    ErrorCode.WORKER_FAILED,
                    f"{sender} sent what its plan does not say: {error}.",
                    "Install the same version of edgeswarm on all devices.",
                )
            )
        except Exception as error:
            # No memory for a frame, say: whoever waits for it shall know why it doesn't come.
            inbound.switch.fail(error)
            raise
        else:
            inbound.switch.fail(LinkBrokenError(sender, "it closed its stream"))
        return b""

    def _inbound_for(self, sender: str, context: grpc.ServicerContext) -> InboundEpoch:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        job_id, epoch = metadata.get(JOB_KEY, ""), int(metadata.get(EPOCH_KEY, "0"))
        with self._lock:
            inbound = self._inbound
        if inbound is None or (inbound.job_id == job_id and inbound.epoch < epoch):
            raise EdgeswarmError(ErrorCode.STALE_CALL, NOT_YET)
        if inbound.job_id != job_id or inbound.epoch > epoch:
            raise EdgeswarmError(ErrorCode.STALE_CALL, f"epoch {epoch} of {job_id} is over")
        if sender not in inbound.senders:
            raise EdgeswarmError(ErrorCode.STALE_CALL, f"the plan has no stream from {sender} to this device")
        return inbound

    def _fetch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            read_layer = self._read_layer
        if read_layer is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "this worker holds no finished state now")
        layer = read_layer(data_pb2.FetchLayerRequest.FromString(request))
        announce_bytes(context, len(layer))
        yield from serve_blob(layer)
