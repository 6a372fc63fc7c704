"""Samples over a byte stream: a worker asks for some, and has them, one request after another on one connection.

    worker  --- u32 size, FetchSamplesRequest --->  data service
            <-- u64 size, u8 kind, bytes ---------

The bytes are those of `encode_items`, or an EdgeswarmError's JSON. No gRPC, since a device that fetches in each round what it
has not seen yet would spend several times the processor's time on it: byte_stream.py.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import NoReturn

from google.protobuf.message import DecodeError

from ..errors import EdgeswarmError, ErrorCode
from .byte_stream import ByteStream
from .call_errors import defect, pack_error, unpack_error
from .frames import SIZE
from .v1 import data_pb2

# More than any device can use at once; less than what would end its memory by accident.
LARGEST_ANSWER_BYTES = 8 * 1024**3
# Of 65,536 samples of the largest data set, whose numbers take up to ten bytes each.
_LARGEST_REQUEST_BYTES = 1024**2
_CHUNK_BYTES = 512 * 1024
_HEAD = struct.Struct("<QB")  # the answer's size and its kind
_SAMPLES, _ERROR = 0, 1


class SamplePart(enum.IntEnum):
    """Which part of an item (inputs, targets) is wanted. The numbers are those of data.proto."""

    BOTH = 0
    INPUTS = 1
    TARGETS = 2


def ask_for_samples(
    stream: ByteStream, request: data_pb2.FetchSamplesRequest, *, largest_bytes: int = LARGEST_ANSWER_BYTES
) -> bytearray:
    """The answer to one request.

    Raises the EdgeswarmError that the other side sent, LINK_BROKEN for an answer of more than `largest_bytes`, and what
    `receive_into` raises. After any error the stream is of no more use.
    """
    data = request.SerializeToString()
    stream.send(SIZE.pack(len(data)) + data)
    head = bytearray(_HEAD.size)
    stream.receive_into(memoryview(head))
    size, kind = _HEAD.unpack(head)
    if size > largest_bytes:
        raise EdgeswarmError(
            ErrorCode.LINK_BROKEN,
            f"{stream.peer} sends {size} bytes of samples at once; no more than {largest_bytes} are taken.",
            "Let the job's dataset give smaller items.",
        )
    answer = bytearray(size)
    stream.receive_into(memoryview(answer))
    if kind == _ERROR:
        _raise_sent(stream.peer, answer)
    return answer


def answer_requests(
    stream: ByteStream, answer: Callable[[data_pb2.FetchSamplesRequest], bytes | bytearray], *, doing: str
) -> None:
    """Answers all that come, until the other end closes the stream; what `answer` raises is told there.

    doing: what it does, for the message of an error that nobody expects. Raises OSError when the stream breaks, ValueError
    for what is no request.
    """
    while (request := _next_request(stream)) is not None:
        # In a call of its own, so that the answer isn't held while the next request is waited for.
        _send_answer(stream, *_answered(request, answer, doing))


def _answered(
    request: data_pb2.FetchSamplesRequest,
    answer: Callable[[data_pb2.FetchSamplesRequest], bytes | bytearray],
    doing: str,
) -> tuple[int, bytes | bytearray]:
    """The answer's kind, and its bytes."""
    try:
        return _SAMPLES, answer(request)
    except EdgeswarmError as error:
        return _ERROR, pack_error(error)
    except Exception as error:
        return _ERROR, pack_error(defect(error, doing))


def _send_answer(stream: ByteStream, kind: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    stream.send(_HEAD.pack(len(view), kind), view[:_CHUNK_BYTES])
    for begin in range(_CHUNK_BYTES, len(view), _CHUNK_BYTES):
        stream.send(view[begin : begin + _CHUNK_BYTES])


def _next_request(stream: ByteStream) -> data_pb2.FetchSamplesRequest | None:
    """None at the stream's end. Raises ValueError for what is no request."""
    head = bytearray(SIZE.size)
    try:
        stream.receive_into(memoryview(head))
    except EOFError:
        return None
    (size,) = SIZE.unpack(head)
    if size > _LARGEST_REQUEST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    data = bytearray(size)
    stream.receive_into(memoryview(data))
    try:
        return data_pb2.FetchSamplesRequest.FromString(bytes(data))
    except DecodeError as error:
        raise ValueError("no request") from error


def _raise_sent(peer: str, answer: bytearray) -> NoReturn:
    error = unpack_error(bytes(answer))
    if error is None:
        raise EdgeswarmError(
            ErrorCode.VERSION_DIFFERS,
            f"{peer} sent an error that can't be read.",
            "Install the same version of edgeswarm on all devices.",
        )
    raise error
