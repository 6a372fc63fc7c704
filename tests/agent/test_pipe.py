"""The pipe between daemon and worker, over real pipes of the kernel."""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.v1 import agent_pb2, worker_pb2
from edgeswarm_agent import pipe as pipe_module
from edgeswarm_agent.pipe import MessagePipe, PipeBroken, read_message, write_message


@pytest.fixture(params=[0, -1], ids=["unbuffered", "buffered"])
def ends(request: pytest.FixtureRequest) -> Iterator[MessagePipe]:
    """A pipe whose two ends are in this process: what is sent can be received."""
    read_fd, write_fd = os.pipe()
    with (
        os.fdopen(read_fd, "rb", buffering=request.param) as reader,
        os.fdopen(write_fd, "wb", buffering=request.param) as writer,
    ):
        yield MessagePipe(reader, writer)


def command(number: int, payload: bytes = b"") -> worker_pb2.WorkerCommand:
    prepare = worker_pb2.PrepareCommand(request=agent_pb2.PrepareRequest(plan_json=payload))
    return worker_pb2.WorkerCommand(number=number, prepare=prepare)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_messages_come_back_in_order_and_then_the_end(payloads: list[bytes]) -> None:
    stream = io.BytesIO()
    for number, payload in enumerate(payloads):
        write_message(stream, command(number, payload))
    stream.seek(0)
    for number, payload in enumerate(payloads):
        assert read_message(stream, worker_pb2.WorkerCommand) == command(number, payload)
    assert read_message(stream, worker_pb2.WorkerCommand) is None


def test_a_message_far_larger_than_the_kernels_buffer_arrives_whole(ends: MessagePipe) -> None:
    sent = command(7, os.urandom(3_000_000))
    sender = threading.Thread(target=ends.send, args=(sent,))
    sender.start()
    assert ends.receive(worker_pb2.WorkerCommand) == sent
    sender.join()


def test_threads_that_send_at_once_do_not_mix_their_bytes(ends: MessagePipe) -> None:
    def send_some(thread: int) -> None:
        for number in range(20):
            ends.send(command(number, bytes([thread]) * 40_000))

    threads = [threading.Thread(target=send_some, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    for _ in range(80):
        message = ends.receive(worker_pb2.WorkerCommand)
        assert message is not None
        payload = message.prepare.request.plan_json
        assert payload == payload[:1] * 40_000
        seen[payload[0]].append(message.number)
    assert all(numbers == list(range(20)) for numbers in seen.values())
    for thread in threads:
        thread.join()


@given(cut=st.integers(min_value=1, max_value=2_000))
def test_an_end_inside_a_message_is_said(cut: int) -> None:
    stream = io.BytesIO()
    write_message(stream, command(1, b"x" * 500))
    whole = stream.getvalue()
    with pytest.raises(PipeBroken):
        read_message(io.BytesIO(whole[: cut % (len(whole) - 1) + 1]), worker_pb2.WorkerCommand)


def test_a_length_that_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(PipeBroken, match="limit"):
        read_message(io.BytesIO(struct.pack(">I", 0xFFFFFFFF)), worker_pb2.WorkerCommand)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(PipeBroken, match="WorkerCommand"):
        read_message(io.BytesIO(struct.pack(">I", 3) + b"\xff\xff\xff"), worker_pb2.WorkerCommand)


def test_a_message_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_module, "LARGEST_MESSAGE_BYTES", 100)
    stream = io.BytesIO()
    with pytest.raises(ValueError, match="limit"):
        write_message(stream, command(1, b"x" * 200))
    assert stream.getvalue() == b""
