from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.frames import HEADER_BYTES, LARGEST_EXPONENT, FrameHeader, FrameKey, FrameKind, unpack_header
from edgeswarm.wire.tensor_frames import IncomingFrame, OutgoingFrame, decode_frame

KEY = FrameKey(FrameKind.FORWARD, 7, 3, 1, 0, 4)


@given(
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]),
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(1, 64),
)
def test_a_tensor_comes_back_from_its_chunks(dtype: torch.dtype, shape: list[int], chunk_bytes: int) -> None:
    tensor = torch.randn(shape).mul(3).to(dtype)
    frame = OutgoingFrame(KEY, tensor, epoch=2, chunk_bytes=chunk_bytes)
    messages = list(frame.messages())
    assert all(len(message) <= HEADER_BYTES + chunk_bytes for message in messages)
    back = decode_frame(iter(messages))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_a_narrow_frame_has_half_the_bytes_and_comes_back_as_float32(wire_dtype: str) -> None:
    tensor = torch.randn(1000) * 1e-7
    frame = OutgoingFrame(KEY, tensor, epoch=0, wire_dtype=wire_dtype)
    assert frame.total_bytes == 2000
    back = decode_frame(frame.messages())
    assert back.dtype == torch.float32
    assert float((back - tensor).norm() / tensor.norm()) < {"bfloat16": 2**-8, "float16": 2**-11}[wire_dtype]
    frame.leave_as_sent(tensor)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
def test_rows_of_zeros_do_not_travel_and_are_there_again(wire_dtype: str | None) -> None:
    table = torch.zeros(1000, 512)
    table[[3, 500, 999]] = torch.randn(3, 512)
    frame = OutgoingFrame(KEY, table, epoch=0, wire_dtype=wire_dtype, leave_out_zeros=True, chunk_bytes=1000)
    assert frame.total_bytes < table.numel() * table.element_size() / 50
    assert OutgoingFrame(KEY, table, epoch=0).total_bytes == table.numel() * table.element_size()
    messages = list(frame.again().messages())
    whole = torch.full((table.numel() * table.element_size() + 3,), 9, dtype=torch.uint8)
    arriving = IncomingFrame(unpack_header(messages[0]), whole)
    assert [arriving.add(unpack_header(message), message) for message in messages].index(True) == len(messages) - 1
    assert (arriving.tensor() == 0).sum() == 997 * 512
    frame.leave_as_sent(table)
    assert torch.equal(arriving.tensor(), table)


def test_zeros_that_do_not_fit_what_came_are_refused() -> None:
    frame = OutgoingFrame(KEY, torch.zeros(4096), epoch=0, leave_out_zeros=True)
    (message,) = frame.messages()
    header = unpack_header(message)
    arriving = IncomingFrame(header)
    assert arriving.add(header, message[:HEADER_BYTES] + b"\xff" * header.total_bytes)
    with pytest.raises(ValueError, match="bytes follow for 32 blocks"):
        arriving.tensor()


def test_parts_of_a_tensor_are_sent_as_they_look() -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    for part in (tensor[:, 1:3], tensor.t(), tensor[1:3]):
        assert torch.equal(decode_frame(OutgoingFrame(KEY, part, epoch=0).messages()), part)


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5, 4, 2), (3, 1, 4, 2), (3, 5, 1, 1), (0, 5, 4, 2)])
def test_images_travel_as_they_lie(shape: tuple[int, ...], wire_dtype: str | None) -> None:
    images = torch.arange(128).remainder(100).float()[: torch.Size(shape).numel()].reshape(shape)
    for tensor in (
        images,
        images.to(memory_format=torch.channels_last),
        images.to(memory_format=torch.channels_last)[1:],
    ):
        arrived = decode_frame(OutgoingFrame(KEY, tensor, epoch=0, wire_dtype=wire_dtype, chunk_bytes=24).messages())
        assert torch.equal(arrived, tensor)
        assert arrived.is_contiguous() == tensor.is_contiguous()


def test_images_that_lie_channels_last_are_not_copied() -> None:
    images = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    frame = OutgoingFrame(KEY, images, epoch=0)
    images[1, 2, 3, 4] = 7.0
    arrived = decode_frame(frame.messages())
    assert arrived[1, 2, 3, 4] == 7.0
    assert arrived.stride() == images.stride()


def test_chunks_may_come_in_any_order() -> None:
    tensor = torch.arange(100)
    messages = list(OutgoingFrame(KEY, tensor, epoch=0, chunk_bytes=96).messages())[::-1]
    headers = [unpack_header(message) for message in messages]
    frame = IncomingFrame(headers[0])
    assert [frame.add(h, m) for h, m in zip(headers, messages, strict=True)] == [False] * (len(messages) - 1) + [True]
    assert torch.equal(frame.tensor(), tensor)


def test_a_header_says_everything() -> None:
    header = FrameHeader(
        key=KEY, epoch=9, dtype="float32", shape=(4, 2), offset=16, total_bytes=16, wire_dtype="float16", exponent=-27
    )
    assert unpack_header(header.pack()) == header
    without_zeros = replace(header, offset=7, total_bytes=15, leaves_out_zeros=True)
    assert unpack_header(without_zeros.pack()) == without_zeros
    images = replace(without_zeros, shape=(1, 2, 4, 1), channels_last=True)
    assert unpack_header(images.pack()) == images


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"short", "no header"),
        (b"\xff" * HEADER_BYTES, "unknown kind"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 99, "float32").pack(), "says 99 bytes"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 30, 32, "float32").pack() + bytes(4), "beyond the end"),
        (FrameHeader(KEY, 0, "float32", (-4, 2), 0, 32, "float32").pack(), "bytes for shape"),
        (FrameHeader(KEY, 0, "int64", (4, 2), 0, 16, "float16").pack(), "int64 travels as float16"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 32, "float32", 0, True).pack(), "says 32 bytes"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 32, "float32", channels_last=True).pack(), "2 dimensions lie"),
        (FrameHeader(KEY, 0, "float32", (1 << 15, 1 << 16), 0, 9, "float32", 0, True).pack(), "says 9 bytes"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 16, "float16", 127).pack(), r"2 \*\* 127"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 16, "float16", 32767).pack(), r"2 \*\* 32767"),
        (FrameHeader(KEY, 0, "float32", (4, 2), 0, 16, "float16", -32768).pack(), r"2 \*\* -32768"),
    ],
)
def test_what_no_worker_writes_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unpack_header(message)


@pytest.mark.parametrize("exponent", [-LARGEST_EXPONENT, LARGEST_EXPONENT])
def test_the_largest_exponents_of_a_header_can_be_computed_with(exponent: int) -> None:
    (message,) = OutgoingFrame(KEY, torch.ones(3), epoch=0, wire_dtype="float16").messages()
    header = unpack_header(replace(unpack_header(message), exponent=exponent).pack() + message[HEADER_BYTES:])
    frame = IncomingFrame(header)
    assert frame.add(header, message)
    widened = frame.tensor()
    assert bool(torch.isfinite(widened).all() if exponent < 0 else (widened > 0).all())


def test_a_frame_refuses_another_ones_chunks_and_too_many() -> None:
    tensor = torch.arange(4)
    message = next(OutgoingFrame(KEY, tensor, epoch=0).messages())
    frame = IncomingFrame(unpack_header(message))
    other = next(OutgoingFrame(KEY, tensor.reshape(2, 2), epoch=0).messages())
    with pytest.raises(ValueError, match="differ"):
        frame.add(unpack_header(other), other)
    assert frame.add(unpack_header(message), message)
    with pytest.raises(ValueError, match="more bytes"):
        frame.add(unpack_header(message), message)


@pytest.mark.parametrize(
    "change", [{"wire_dtype": "bfloat16"}, {"exponent": 3}, {"leaves_out_zeros": True}, {"dtype": "float16"}]
)
def test_a_frame_refuses_chunks_that_are_to_be_read_in_another_way(change: dict[str, Any]) -> None:
    frame = OutgoingFrame(KEY, torch.randn(100), epoch=0, wire_dtype="float16", chunk_bytes=40)
    first, second = (unpack_header(message) for message in list(frame.messages())[:2])
    arriving = IncomingFrame(first)
    with pytest.raises(ValueError, match="chunks of one frame differ"):
        arriving.room(replace(second, **change), 40)
