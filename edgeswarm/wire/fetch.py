"""Fetching what is bigger than one message from whoever holds it: a layer's state.

A request is one protobuf message, the answer a stream of raw bytes: the parts of one file in order, nothing between.

    worker  --- FetchLayerRequest -->  holder
            <-- 512 KiB, 512 KiB, ..., rest ---

Raw bytes, since a `bytes` field of a protobuf message costs two more copies. Samples, of which a device needs some in each round,
come over a byte stream: sample_stream.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import grpc

from ..errors import EdgeswarmError, ErrorCode

FETCH_LAYER = "/edgeswarm.wire.v1.Layers/Fetch"

BYTES_KEY = "edgeswarm-bytes"
CHUNK_BYTES = 512 * 1024
# More than the state of any layer that a small computer holds; less than what would end its memory by accident.
LARGEST_BLOB_BYTES = 8 * 1024**3
_MOST_DIGITS = 18  # of a number of bytes that somebody means
# For a worker to get ready, most of which is fetching its layers: those of a large model take many minutes over slow Wi-Fi. A
# device that is gone is noticed by its heartbeats and by the connection to it, so this only ends what hangs.
PREPARE_SECONDS = 3600.0


class Message(Protocol):
    """A protobuf message, as far as it matters here."""

    def SerializeToString(self) -> bytes: ...


def serve_pieces(pieces: Iterable[bytes | bytearray | memoryview], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The messages that carry what these are one behind the other: the answer of a raw unary-stream handler."""
    chunk = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(chunk) + len(view) >= chunk_bytes:
            part = chunk_bytes - len(chunk)
            chunk += view[:part]
            view = view[part:]
            yield bytes(chunk)
            chunk.clear()
        chunk += view
    if chunk:
        yield bytes(chunk)


def announce_bytes(context: grpc.ServicerContext, size: int) -> None:
    """Says how long the answer will be, before it: the one who asks makes room once, and no copies as it grows."""
    context.send_initial_metadata(((BYTES_KEY, str(size)),))


def serve_file(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The messages that carry a file, which never lies in memory as a whole. Raises OSError where it can't be read."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(chunk_bytes):
            yield chunk


def fetch_blob(
    channel: grpc.Channel,
    method: str,
    request: Message,
    *,
    timeout_seconds: float,
    largest_bytes: int = LARGEST_BLOB_BYTES,
) -> bytearray:
    """Ask a holder and gather its whole answer. `method` is one of the names above.

    Raises grpc.RpcError (the caller knows whom it asked, and turns it into a message that names the device), and
    EdgeswarmError(LINK_BROKEN) for an answer of more than `largest_bytes`.
    """
    ask: grpc.UnaryStreamMultiCallable[Message, bytes] = channel.unary_stream(
        method, request_serializer=_serialize, response_deserializer=None
    )
    call = ask(request, timeout=timeout_seconds)
    announced = _announced_bytes(call)
    blob = bytearray(min(announced, largest_bytes))
    received = 0
    for chunk in call:
        end = received + len(chunk)
        if max(end, announced) > largest_bytes:
            call.cancel()
            raise EdgeswarmError(
                ErrorCode.LINK_BROKEN,
                f"The answer to {method} is larger than {largest_bytes} bytes; it was cut off.",
                "Cut the model into smaller layers.",
            )
        blob[received:end] = chunk
        received = end
    del blob[received:]
    return blob


def _announced_bytes(call: grpc.Call) -> int:
    """What `announce_bytes` said; 0 where nothing was said, or the call failed."""
    for key, value in call.initial_metadata() or ():
        digits = str(value)
        if key == BYTES_KEY and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
            return int(digits)
    return 0


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
