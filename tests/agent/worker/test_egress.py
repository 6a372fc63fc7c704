from __future__ import annotations

import threading

import pytest
import torch

from edgeswarm.wire.frames import FrameKey, FrameKind, unpack_header
from edgeswarm.wire.tensor_frames import OutgoingFrame
from edgeswarm_agent.worker.egress import EgressScheduler
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError


def frame(kind: FrameKind, number: int, *, chunks: int = 1) -> OutgoingFrame:
    key = FrameKey(kind, 0, number, 0, 0, 0)
    return OutgoingFrame(key, torch.zeros(4 * chunks, dtype=torch.uint8), epoch=0, chunk_bytes=4)


def kinds_of(scheduler: EgressScheduler, peer: str, count: int) -> list[FrameKind]:
    found = []
    for _ in range(count):
        chunk = scheduler.next_chunk(peer)
        assert chunk is not None
        found.append(unpack_header(chunk.header, chunk.size_bytes).key.kind)
    return found


@pytest.fixture
def scheduler() -> EgressScheduler:
    scheduler = EgressScheduler(EpochSwitch())
    scheduler.open("a")
    scheduler.open("b")
    return scheduler


def test_activations_overtake_a_bucket_that_has_begun(scheduler: EgressScheduler) -> None:
    scheduler.send("a", frame(FrameKind.ALL_REDUCE, 0, chunks=3))
    assert kinds_of(scheduler, "a", 1) == [FrameKind.ALL_REDUCE]
    scheduler.send("a", frame(FrameKind.BACKWARD, 0, chunks=2))
    expected = [FrameKind.BACKWARD, FrameKind.BACKWARD, FrameKind.ALL_REDUCE, FrameKind.ALL_REDUCE]
    assert kinds_of(scheduler, "a", 4) == expected


def test_a_bucket_waits_while_another_stream_has_a_gradient_to_send(scheduler: EgressScheduler) -> None:
    scheduler.send("b", frame(FrameKind.BACKWARD, 0))
    scheduler.send("a", frame(FrameKind.ALL_REDUCE, 0))
    left: list[FrameKind] = []
    thread = threading.Thread(target=lambda: left.extend(kinds_of(scheduler, "a", 1)))
    thread.start()
    assert kinds_of(scheduler, "b", 1) == [FrameKind.BACKWARD]
    thread.join(timeout=0.2)
    assert thread.is_alive(), "the gradient's chunk is still being written"
    waiting = threading.Thread(target=lambda: scheduler.next_chunk("b"))
    waiting.start()
    thread.join(timeout=5)
    assert left == [FrameKind.ALL_REDUCE]
    scheduler.close()
    waiting.join(timeout=5)


def test_a_frame_has_left_once_its_last_chunk_is_written(scheduler: EgressScheduler) -> None:
    """Chunks are read where the tensor lies, so that whoever made it for the frame may write there only then."""
    key = FrameKey(FrameKind.ALL_REDUCE, 0, 0, 0, 0, 0)
    tensor = torch.arange(8, dtype=torch.uint8)
    left: list[int] = []
    outgoing = OutgoingFrame(key, tensor, epoch=0, chunk_bytes=4, left=lambda: left.append(scheduler.sent_bytes))
    scheduler.send("a", outgoing)
    sent = [scheduler.next_chunk("a"), scheduler.next_chunk("a")]
    tensor[7] = 70
    assert [bytes(chunk.data) for chunk in sent if chunk is not None] == [bytes([0, 1, 2, 3]), bytes([4, 5, 6, 70])]
    assert left == []
    scheduler.send("a", frame(FrameKind.ALL_REDUCE, 1))
    assert scheduler.next_chunk("a") is not None
    assert len(left) == 1


def test_bytes_are_counted_and_closing_ends_every_stream() -> None:
    switch = EpochSwitch()
    scheduler = EgressScheduler(switch)
    scheduler.open("a")
    scheduler.send("a", frame(FrameKind.FORWARD, 0))
    chunk = scheduler.next_chunk("a")
    assert chunk is not None
    assert scheduler.sent_bytes == chunk.size_bytes
    switch.halt()
    assert scheduler.next_chunk("a") is None
    with pytest.raises(HaltedError):
        switch.check()
