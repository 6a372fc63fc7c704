"""Messages between an agent's daemon and its worker: protobuf with a length before each, over a pair of byte streams.

    | length: 4 bytes, big endian | message: `length` bytes of protobuf | length | message | ...

Both ends are processes of one machine, parent and child, so there is nothing to authenticate here. The size is bounded
all the same: a length that makes no sense means that something else wrote into the pipe, and that is better said than
waited out.
"""

from __future__ import annotations

import struct
import threading
from typing import BinaryIO, TypeVar

from google.protobuf.message import DecodeError, Message

# A `prepare` carries the plan and a stage's graph as JSON, some MiB for a large model.
LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")

MessageType = TypeVar("MessageType", bound=Message)


class PipeBroken(Exception):
    """The stream ended inside a message, or carries something else: the other end died, or somebody wrote between."""


def write_message(stream: BinaryIO, message: Message) -> None:
    """Writes one message and flushes it. Not safe from several threads at once: `MessagePipe` is.

    Raises: ValueError where the message is larger than the limit, OSError where the other end is gone.
    """
    body = message.SerializeToString()
    if len(body) > LARGEST_MESSAGE_BYTES:
        raise ValueError(
            f"a {type(message).__name__} of {len(body)} bytes is over the pipe's limit of {LARGEST_MESSAGE_BYTES} bytes"
        )
    view = memoryview(_LENGTH.pack(len(body)) + body)
    while view:
        # An unbuffered stream may take a part only.
        view = view[stream.write(view) :]
    stream.flush()


def read_message(stream: BinaryIO, kind: type[MessageType]) -> MessageType | None:
    """The next message, or None where the stream ended between two messages.

    Raises: PipeBroken where it ended inside a message or carries something else.
    """
    head = _read_up_to(stream, _LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise PipeBroken(f"the pipe ended inside the length of a {kind.__name__}")
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST_MESSAGE_BYTES:
        raise PipeBroken(
            f"the pipe announces a {kind.__name__} of {length} bytes; the limit is {LARGEST_MESSAGE_BYTES} bytes"
        )
    body = _read_up_to(stream, length)
    if len(body) < length:
        raise PipeBroken(f"the pipe ended after {len(body)} of the {length} bytes of a {kind.__name__}")
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise PipeBroken(f"{length} bytes in the pipe are no {kind.__name__}: {error}") from error
    return message


def _read_up_to(stream: BinaryIO, count: int) -> bytes:
    """`count` bytes, fewer only at the stream's end (an unbuffered stream gives what has come so far)."""
    parts: list[bytes] = []
    missing = count
    while missing:
        part = stream.read(missing)
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class MessagePipe:
    """Both directions of a pipe. Any thread may send; one thread receives."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends one message whole, whichever threads send at once.

        Raises: ValueError where it is too large, OSError where the other end is gone.
        """
        with self._send_lock:
            write_message(self._writer, message)

    def receive(self, kind: type[MessageType]) -> MessageType | None:
        """Blocks for the next message; None at the stream's end. Raises: PipeBroken."""
        return read_message(self._reader, kind)
