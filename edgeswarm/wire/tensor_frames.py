"""Tensors to frames and back. The only place where the bytes of a tensor meet the wire."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from .frames import CHUNK_BYTES, HEADER_BYTES, IMAGE_DIMENSIONS, FrameHeader, FrameKey, tensor_bytes, unpack_header
from .tensor_blocks import put_zero_blocks_back, without_zero_blocks
from .tensor_narrowing import Narrowed, narrowed

_DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
# From [batch, channels, height, width] to what lies pixel by pixel, and back.
_BY_PIXEL, _BY_CHANNEL = (0, 2, 3, 1), (0, 3, 1, 2)
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32. Raises ValueError for an element type that can't cross the wire."""
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"tensors of {dtype} can't be sent")
    return _DTYPE_NAMES[dtype]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    return flat.numpy().data


class Chunk(NamedTuple):
    """A message: its header, and the bytes of the tensor itself, of which there is no copy."""

    header: bytes
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.data)


class OutgoingFrame:
    """A tensor on its way out, cut into chunks as they are asked for.

    The tensor must not change until the last chunk has left. On a GPU, or where it is neither contiguous nor of images that lie
    channels last, it is copied first.
    wire_dtype: how a float32 tensor travels, "bfloat16" or "float16"; None for as it is. left: called once the last chunk has.
    leave_out_zeros: blocks of them, where there are many.
    """

    def __init__(
        self,
        key: FrameKey,
        tensor: torch.Tensor,
        *,
        epoch: int,
        wire_dtype: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        left: Callable[[], None] | None = None,
        leave_out_zeros: bool = False,
    ) -> None:
        source = tensor.detach()
        self._travelling = narrowed(source, wire_dtype)  # where it is: a GPU then has half as much to copy
        part = self._travelling.tensor
        part = part.cpu() if part.is_cuda else part
        self._channels_last = _lies_channels_last(part)
        self._tensor = part.permute(_BY_PIXEL) if self._channels_last else part.contiguous()
        self.key = key
        self._dtype = dtype_name(source.dtype)
        self._wire_dtype = dtype_name(part.dtype)
        self._shape = tuple(source.shape)
        self._epoch = epoch
        self._bytes = bytes_of(self._tensor)
        fewer = without_zero_blocks(np.frombuffer(self._bytes, dtype=np.uint8)) if leave_out_zeros else None
        self._leaves_out_zeros = fewer is not None
        self.left_out_bytes = 0 if fewer is None else len(self._bytes) - len(fewer)
        if fewer is not None:
            self._bytes = fewer.data
        self._chunk_bytes = chunk_bytes
        self._left = left
        self._offset = 0
        self.total_bytes = len(self._bytes)
        self.is_done = False

    def again(self) -> OutgoingFrame:
        """The same tensor for another peer, from its first chunk on; `left` is called for each."""
        other = copy.copy(self)
        other._offset = 0
        other.is_done = False
        return other

    def next_chunk(self) -> Chunk:
        """The next message, for who calls `chunk_left` behind it. An empty tensor is one message without bytes."""
        assert not self.is_done
        end = min(self._offset + self._chunk_bytes, self.total_bytes)
        header = FrameHeader(
            self.key,
            self._epoch,
            self._dtype,
            self._shape,
            self._offset,
            self.total_bytes,
            self._wire_dtype,
            self._travelling.exponent,
            self._leaves_out_zeros,
            self._channels_last,
        )
        chunk = Chunk(header.pack(), self._bytes[self._offset : end])
        self._offset = end
        self.is_done = end == self.total_bytes
        return chunk

    def chunk_left(self) -> None:
        """Nobody reads any more what `next_chunk` gave last."""
        if self.is_done and self._left is not None:
            self._left()

    def leave_as_sent(self, source: torch.Tensor) -> None:
        """Writes into the tensor that was sent what the other side gets of it; nothing where that is the same."""
        if self._wire_dtype != self._dtype:
            source.copy_(self._travelling.widened(source.dtype))

    def messages(self) -> Iterator[bytes]:
        """All that are left, each in one piece; for tests and tools."""
        while not self.is_done:
            message = b"".join(self.next_chunk())
            self.chunk_left()
            yield message


class IncomingFrame:
    """A tensor on its way in: chunks are written to where they belong, in any order."""

    def __init__(self, header: FrameHeader, storage: torch.Tensor | None = None) -> None:
        """storage: at least as many bytes as the tensor has (uint8, on the CPU); None for memory of its own."""
        self._header = header
        size = header.tensor_bytes
        self._storage = torch.empty(size, dtype=torch.uint8) if storage is None else storage[:size]
        # Without its zeros it comes into memory of its own, which is little.
        arriving = np.empty(header.total_bytes, dtype=np.uint8) if header.leaves_out_zeros else self._storage.numpy()
        self._view = arriving.data
        self._missing_bytes = header.total_bytes

    def room(self, header: FrameHeader, size: int) -> memoryview:
        """Where the bytes of a chunk belong. Raises ValueError for a chunk of another tensor, or one too many."""
        first, other = _form(self._header), _form(header)
        if other != first:
            raise ValueError(f"chunks of one frame differ: {other} and {first}")
        if size > self._missing_bytes or (size == 0 and self._header.total_bytes):
            raise ValueError("a frame got more bytes than it has")
        return self._view[header.offset : header.offset + size]

    def filled(self, size: int) -> bool:
        """So many bytes are in their place; True when the frame is whole."""
        self._missing_bytes -= size
        return self._missing_bytes == 0

    def add(self, header: FrameHeader, message: bytes) -> bool:
        """Writes one chunk that is here already; True when the frame is whole. Raises ValueError as `room` does."""
        size = len(message) - HEADER_BYTES
        self.room(header, size)[:] = memoryview(message)[HEADER_BYTES:]
        return self.filled(size)

    def tensor(self) -> torch.Tensor:
        """The tensor, on the CPU; it shares the frame's memory unless it travelled narrowed.

        Raises ValueError where what came in place of a tensor with many zeros is none.
        """
        if self._header.leaves_out_zeros:
            put_zero_blocks_back(np.frombuffer(self._view, dtype=np.uint8), self._storage.numpy())
        shape = self._header.shape
        travelled = self._storage.view(_DTYPES[self._header.wire_dtype])
        if self._header.channels_last:
            travelled = travelled.reshape([shape[dimension] for dimension in _BY_PIXEL]).permute(_BY_CHANNEL)
        else:
            travelled = travelled.reshape(shape)
        return Narrowed(travelled, self._header.exponent).widened(_DTYPES[self._header.dtype])


def _form(header: FrameHeader) -> tuple[object, ...]:
    """What all chunks of a frame have in common: how their bytes are to be read."""
    return (
        header.dtype,
        header.shape,
        header.total_bytes,
        header.wire_dtype,
        header.exponent,
        header.leaves_out_zeros,
        header.channels_last,
    )


def _lies_channels_last(tensor: torch.Tensor) -> bool:
    """Of images whose elements lie one way only if they lie so: not those of one pixel or one channel."""
    is_of_images = tensor.dim() == IMAGE_DIMENSIONS
    return is_of_images and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def decode_frame(messages: Iterator[bytes]) -> torch.Tensor:
    """One whole frame from its messages; for tests and tools. Raises ValueError when messages are missing."""
    frame: IncomingFrame | None = None
    for message in messages:
        header = unpack_header(message)
        frame = frame or IncomingFrame(header)
        if frame.add(header, message):
            return frame.tensor()
    raise ValueError("the frame is not whole")


__all__ = ["Chunk", "IncomingFrame", "OutgoingFrame", "bytes_of", "decode_frame", "dtype_name", "tensor_bytes"]
