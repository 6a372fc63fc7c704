"""The streams from this worker to others, one for each peer that the plan has it send to."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence

import grpc

from edgeswarm.security.identity import Identity
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import raw_stream_unary, secure_channel

from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .errors import LinkBrokenError
from .tensor_server import EPOCH_KEY, JOB_KEY, NOT_YET, TAKEN

RETRY_SECONDS = 0.05


class OutboundLinks:
    """Opens and watches the streams of one epoch. What travels on them is the egress scheduler's business."""

    def __init__(
        self, identity: Identity, *, job_id: str, epoch: int, egress: EgressScheduler, switch: EpochSwitch
    ) -> None:
        self._identity = identity
        self._metadata = ((JOB_KEY, job_id), (EPOCH_KEY, str(epoch)))
        self._egress = egress
        self._switch = switch
        self._channels: list[grpc.Channel] = []

    def open(self, addresses: Mapping[str, str], *, timeout_seconds: float) -> None:
        """Opens a stream to every peer (node id to host:port) and returns when all are taken.

        A peer that isn't in this epoch yet is asked again, for as long as it says so: it may fetch more layers than this
        worker. timeout_seconds: for one that doesn't answer. Raises EdgeswarmError that names the peer which can't be reached.
        """
        for peer in addresses:
            self._egress.open(peer)
        for peer, address in addresses.items():
            channel = secure_channel(address, identity=self._identity, node_id=peer)
            self._channels.append(channel)
            self._open_stream(peer, channel, timeout_seconds)

    def close(self) -> None:
        """Ends all streams. Idempotent."""
        self._egress.close()
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _open_stream(self, peer: str, channel: grpc.Channel, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        call_stream = raw_stream_unary(channel, "edgeswarm.wire.v1.Tensors", "Send")
        while True:
            self._switch.check()
            attempt = _Attempt()
            call = call_stream.future(self._messages(peer, attempt), metadata=self._metadata)
            error = self._refusal(call)
            if error is None:
                call.add_done_callback(functools.partial(self._stream_ended, peer))
                return
            attempt.is_over = True
            self._egress.wake(peer)
            if _says_not_yet(error):
                deadline = time.monotonic() + timeout_seconds
            elif time.monotonic() > deadline or error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise error_of_call(error, device=peer, doing="open its tensor stream") from error
            self._switch.sleep(RETRY_SECONDS)

    @staticmethod
    def _refusal(call: grpc.Future[bytes]) -> grpc.RpcError | None:
        """Waits until the stream is taken (None) or refused."""
        # A stream_unary future is a grpc.Call too, which its stub doesn't say.
        metadata: Sequence[tuple[str, object]] = call.initial_metadata() or ()  # type: ignore[attr-defined]
        if TAKEN in metadata:
            return None
        # Refused, or failed on its way: then there is no such metadata, and the error comes at once.
        refusal = call.exception()
        assert isinstance(refusal, grpc.RpcError)
        return refusal

    def _messages(self, peer: str, attempt: _Attempt) -> Iterator[bytes]:
        while (message := self._egress.next_chunk(peer, is_over=lambda: attempt.is_over)) is not None:
            yield message

    def _stream_ended(self, peer: str, call: grpc.Future[bytes]) -> None:
        try:
            error = call.exception()
        except (grpc.FutureCancelledError, grpc.RpcError):
            error = None
        details = error.details() if isinstance(error, grpc.RpcError) else "closed"
        self._switch.fail(LinkBrokenError(peer, details or "no details"))


class _Attempt:
    """One try at opening a stream: when it has failed, its thread must not take another chunk."""

    def __init__(self) -> None:
        self.is_over = False


def _says_not_yet(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.FAILED_PRECONDITION and (error.details() or "").startswith(NOT_YET)
