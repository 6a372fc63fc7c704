from __future__ import annotations

import threading
import time

import pytest
import torch

from edgeswarm.wire.frames import HEADER_BYTES, FrameKey, FrameKind, unpack_header
from edgeswarm.wire.tensor_frames import OutgoingFrame
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError
from edgeswarm_agent.worker.mailbox import Mailbox

SENDER = "a-000001"


def key(kind: FrameKind, number: int) -> FrameKey:
    return FrameKey(kind, 0, number, 0, 0, 1)


def deliver(mailbox: Mailbox, of_key: FrameKey, tensor: torch.Tensor) -> None:
    for message in OutgoingFrame(of_key, tensor, epoch=1).messages():
        data = memoryview(message)[HEADER_BYTES:]

        def fill(room: memoryview, data: memoryview = data) -> None:
            room[:] = data

        mailbox.deliver(SENDER, unpack_header(message), len(data), fill=fill)


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox(EpochSwitch(), epoch=1)


def test_each_waits_for_its_own(mailbox: Mailbox) -> None:
    """The first frame is not what the first one waits for."""
    found: dict[int, torch.Tensor] = {}

    def wait(number: int) -> None:
        found[number] = mailbox.take((SENDER, key(FrameKind.FORWARD, number)))

    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in waiting:
        thread.start()
    for number in (2, 0, 1):
        deliver(mailbox, key(FrameKind.FORWARD, number), torch.full((3,), float(number)))
    for thread in waiting:
        thread.join(timeout=10)
    assert {number: tensor.tolist() for number, tensor in found.items()} == {n: [n] * 3 for n in range(3)}


def test_any_of_several_groups_is_enough(mailbox: Mailbox) -> None:
    both = tuple((SENDER, key(FrameKind.FORWARD, number)) for number in (0, 1))
    one = ((SENDER, key(FrameKind.BACKWARD, 0)),)
    done = threading.Event()

    def wait() -> None:
        mailbox.wait_any([both, one])
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    deliver(mailbox, key(FrameKind.FORWARD, 0), torch.ones(1))
    assert not done.wait(0.1)
    deliver(mailbox, key(FrameKind.BACKWARD, 0), torch.ones(1))
    assert done.wait(10)
    assert mailbox.missing(both) == [both[1]]


def test_something_else_may_end_the_waiting(mailbox: Mailbox) -> None:
    there = threading.Event()
    done = threading.Event()

    def wait() -> None:
        mailbox.wait_any([((SENDER, key(FrameKind.BACKWARD, 0)),)], or_else=there.is_set)
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    mailbox.look_again()
    assert not done.wait(0.1)
    there.set()
    mailbox.look_again()
    assert done.wait(10)


def test_the_end_wakes_everybody() -> None:
    switch = EpochSwitch()
    mailbox = Mailbox(switch, epoch=1)
    raised: list[BaseException] = []

    def wait(number: int) -> None:
        try:
            mailbox.take((SENDER, key(FrameKind.FORWARD, number)))
        except HaltedError as error:
            raised.append(error)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    switch.halt()
    for thread in threads:
        thread.join(timeout=10)
    assert len(raised) == 3


def test_pieces_of_an_all_reduce_use_the_same_memory_one_after_another(mailbox: Mailbox) -> None:
    mailbox.pieces.reserve(4000, 1)
    places = set()
    for number in range(3):
        deliver(mailbox, key(FrameKind.ALL_REDUCE, number), torch.full((1000,), float(number)))
        with mailbox.taken((SENDER, key(FrameKind.ALL_REDUCE, number))) as piece:
            assert piece.tolist() == [number] * 1000
            places.add(piece.data_ptr())
    assert len(places) == 1


def test_a_frame_that_is_expected_comes_where_it_is_wanted(mailbox: Mailbox) -> None:
    mailbox.pieces.reserve(4000, 1)
    wanted = torch.zeros(2000)
    address = (SENDER, key(FrameKind.ALL_REDUCE, 0))
    mailbox.expect(address, wanted[500:1500])
    deliver(mailbox, address[1], torch.arange(1000.0))
    with mailbox.taken(address) as arrived:
        assert arrived.data_ptr() == wanted[500:].data_ptr()
    assert wanted[500:1500].tolist() == list(range(1000))
    assert not wanted[:500].any()
    assert not wanted[1500:].any()
    deliver(mailbox, key(FrameKind.ALL_REDUCE, 1), torch.ones(1000))
    with mailbox.taken((SENDER, key(FrameKind.ALL_REDUCE, 1))) as piece:
        assert piece.data_ptr() != wanted[500:].data_ptr(), "the memory went to a frame that nobody expected"


def test_a_frame_of_another_size_than_is_expected_is_refused(mailbox: Mailbox) -> None:
    address = (SENDER, key(FrameKind.ALL_REDUCE, 0))
    mailbox.expect(address, torch.zeros(3))
    with pytest.raises(ValueError, match="has 16 bytes in place of 12"):
        deliver(mailbox, address[1], torch.ones(4))
