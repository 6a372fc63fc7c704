"""The one frame format: how a tensor travels between workers. Pure: headers in, headers out.

A frame is one tensor, or a replica's part of one. It is cut into chunks; each chunk is one message of a stream, which says
its size, that of the header included, in the four bytes before it:

    | size | header, 112 bytes | bytes [offset, offset + n) of the tensor |

Every chunk carries the whole header, so that chunks of frames of different priority may alternate on one stream.
The tensor is row-major, or as it lies where that is images channels last: turning them over would cost both ends a copy.
The bytes may be of a narrower element type than the tensor: it is wire_element * 2 ** exponent (see tensor_narrowing.py).
Blocks of zeros may be left out of them (see tensor_blocks.py); offset and sizes are then those of what travels.
What numbers mean for the kinds:

    kind         micro_batch   tensor_index      first_sample, end_sample
    FORWARD      index         live value        interval of samples within the micro-batch
    BACKWARD     index         live value        interval of samples within the micro-batch; shape (0) is: no gradient
    ALL_REDUCE   bucket        0: to the chunk's owner, 1: its sum   chunk, 0
    TIED         0: to the owner, 1: back   index of the tied tensor   stage, 0
    CONTROL      0: up, 1: down, 2: to the replicas   0   0, 0
    EVALUATE     as FORWARD, of the evaluation set; round: rounds done before it
    EVALUATED    as BACKWARD, always of shape (0): it only says that the next one may come
"""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

MAX_DIMENSIONS = 8
MAX_FRAME_BYTES = 1 << 32
# Measured (bench/tensor_path.py): larger ones cost hardly less CPU, and hold up what is more urgent for longer.
CHUNK_BYTES = 512 * 1024

_HEADER = struct.Struct(f"<BBBBhBxIIIIIIQQ{MAX_DIMENSIONS}q")
HEADER_BYTES = _HEADER.size
_LEAVES_OUT_ZEROS, _CHANNELS_LAST = 1, 2  # bits of one number of it
IMAGE_DIMENSIONS = 4
SIZE = struct.Struct("<I")  # of a message, before it

# The element types that cross the wire: name, bytes of one element. The position is the code in the header.
DTYPES: tuple[tuple[str, int], ...] = (
    ("float32", 4),
    ("float64", 8),
    ("float16", 2),
    ("bfloat16", 2),
    ("int64", 8),
    ("int32", 4),
    ("int16", 2),
    ("int8", 1),
    ("uint8", 1),
    ("bool", 1),
    ("complex64", 8),
    ("complex128", 16),
)
# What may travel as what.
NARROWINGS = (("float32", "bfloat16"), ("float32", "float16"))
DTYPE_CODES = {name: code for code, (name, _) in enumerate(DTYPES)}
# Of the power of two of a narrowed frame, either way: beyond it the factor itself would leave float32.
LARGEST_EXPONENT = 126


class FrameKind(enum.IntEnum):
    FORWARD = 1
    BACKWARD = 2
    ALL_REDUCE = 3
    TIED = 4
    CONTROL = 5
    EVALUATE = 6
    EVALUATED = 7


class EgressClass(enum.IntEnum):
    """Who goes first where several frames want the same network card; lower goes first."""

    PIPELINE = 0
    ALL_REDUCE = 1


EGRESS_CLASS = {
    FrameKind.FORWARD: EgressClass.PIPELINE,
    FrameKind.BACKWARD: EgressClass.PIPELINE,
    FrameKind.CONTROL: EgressClass.PIPELINE,
    FrameKind.EVALUATE: EgressClass.PIPELINE,
    FrameKind.EVALUATED: EgressClass.PIPELINE,
    FrameKind.ALL_REDUCE: EgressClass.ALL_REDUCE,
    FrameKind.TIED: EgressClass.ALL_REDUCE,
}


class FrameKey(NamedTuple):
    """What tells one frame from every other between the same two workers in one epoch."""

    kind: FrameKind
    round: int
    micro_batch: int
    tensor_index: int
    first_sample: int
    end_sample: int


@dataclass(frozen=True)
class FrameHeader:
    """Everything about a chunk but its bytes.

    dtype: of the tensor. wire_dtype: of its bytes, the same unless it travels narrowed. exponent: of the power of two by
    which what arrives is multiplied. total_bytes: of the whole frame, as it travels. leaves_out_zeros: blocks of them.
    channels_last: of a shape [batch, channels, height, width], whose elements come pixel by pixel.
    """

    key: FrameKey
    epoch: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    total_bytes: int
    wire_dtype: str
    exponent: int = 0
    leaves_out_zeros: bool = False
    channels_last: bool = False

    @property
    def tensor_bytes(self) -> int:
        """Of the whole tensor in the element type that travels, zeros included."""
        return tensor_bytes(self.wire_dtype, self.shape)

    def pack(self) -> bytes:
        dims = self.shape + (0,) * (MAX_DIMENSIONS - len(self.shape))
        return _HEADER.pack(
            self.key.kind,
            DTYPE_CODES[self.dtype],
            DTYPE_CODES[self.wire_dtype],
            len(self.shape),
            self.exponent,
            self.leaves_out_zeros * _LEAVES_OUT_ZEROS | self.channels_last * _CHANNELS_LAST,
            self.epoch,
            self.key.round,
            self.key.micro_batch,
            self.key.tensor_index,
            self.key.first_sample,
            self.key.end_sample,
            self.offset,
            self.total_bytes,
            *dims,
        )


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * DTYPES[DTYPE_CODES[dtype]][1]


def unpack_header(message: bytes | memoryview, message_bytes: int | None = None) -> FrameHeader:
    """Reads the header at the beginning of a message. Raises ValueError for one that no worker of ours writes.

    message_bytes: how long the message is, where not all of it is here yet.
    """
    message_bytes = len(message) if message_bytes is None else message_bytes
    if min(message_bytes, len(message)) < HEADER_BYTES:
        raise ValueError(f"a frame of {message_bytes} bytes has no header")
    kind, dtype_code, wire_code, ndim, exponent, form, epoch, *numbers = _HEADER.unpack_from(message)
    round_number, micro_batch, tensor_index, first, end, offset, total, *dims = numbers
    known = kind in FrameKind.__members__.values() and max(dtype_code, wire_code) < len(DTYPES)
    if not known or ndim > MAX_DIMENSIONS or form > _LEAVES_OUT_ZEROS | _CHANNELS_LAST:
        raise ValueError(f"a frame of unknown kind {kind}, element type {dtype_code} or {ndim} dimensions")
    zeros, channels_last = bool(form & _LEAVES_OUT_ZEROS), bool(form & _CHANNELS_LAST)
    if channels_last and ndim != IMAGE_DIMENSIONS:
        raise ValueError(f"a frame says that {ndim} dimensions lie channels last")
    shape = tuple(dims[:ndim])
    dtype, wire_dtype = DTYPES[dtype_code][0], DTYPES[wire_code][0]
    if wire_dtype != dtype and (dtype, wire_dtype) not in NARROWINGS:
        raise ValueError(f"a frame says that {dtype} travels as {wire_dtype}")
    if abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f"a frame says that it is to be multiplied by 2 ** {exponent}")
    whole = tensor_bytes(wire_dtype, shape)
    fits = total < whole if zeros else total == whole
    if min(shape, default=0) < 0 or not fits or whole > MAX_FRAME_BYTES:
        raise ValueError(f"a frame says {total} bytes for shape {shape} of {wire_dtype}")
    if offset + message_bytes - HEADER_BYTES > total:
        raise ValueError("a chunk reaches beyond the end of its frame")
    key = FrameKey(FrameKind(kind), round_number, micro_batch, tensor_index, first, end)
    return FrameHeader(
        key=key,
        epoch=epoch,
        dtype=dtype,
        shape=shape,
        offset=offset,
        total_bytes=total,
        wire_dtype=wire_dtype,
        exponent=exponent,
        leaves_out_zeros=zeros,
        channels_last=channels_last,
    )
