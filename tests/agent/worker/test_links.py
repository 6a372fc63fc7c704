from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import ByteStream, at_port, open_stream
from edgeswarm.wire.channel import raw_unary, secure_channel
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_agent.worker.errors import HaltedError, LinkBrokenError
from edgeswarm_agent.worker.links import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS

from .lan import JOB, Lan

KEY = FrameKey(FrameKind.FORWARD, 0, 0, 0, 0, 1)


def test_a_large_tensor_crosses_whole(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        sent = torch.randn(1500, 1000)
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        a.egress.send("b-000002", OutgoingFrame(KEY, sent, epoch=1))
        assert torch.equal(b.mailbox.take(("a-000001", KEY)), sent)
        assert a.egress.sent_bytes == b.mailbox.received_bytes


def test_a_tensor_that_has_left_is_let_go(tmp_path: Path) -> None:
    """Also while nothing follows it: a micro-batch's activations are large, and the next one's may be long in coming."""
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        memory = np.ones(1_000_000, dtype=np.float32)
        let_go = threading.Event()
        weakref.finalize(memory, let_go.set)
        lan.ends["a-000001"].egress.send("b-000002", OutgoingFrame(KEY, torch.from_numpy(memory), epoch=1))
        del memory
        assert lan.ends["b-000002"].mailbox.take(("a-000001", KEY)).sum() == 1_000_000
        assert let_go.wait(10)


def test_a_stream_of_an_epoch_to_come_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"], opened=False) as lan:
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        a.open_epoch(["b-000002"])
        monkeypatch.setattr(a.switch, "sleep", lambda _: b.open_epoch(["a-000001"]))  # once it has said "not yet"
        a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=10)
        a.egress.send("b-000002", OutgoingFrame(KEY, torch.ones(3), epoch=1))
        assert torch.equal(b.mailbox.take(("a-000001", KEY)), torch.ones(3))


def test_a_peer_that_says_not_yet_is_waited_for_beyond_the_time_for_silence(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"], opened=False) as lan:
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        threading.Timer(0.3, lambda: b.open_epoch(["a-000001"])).start()
        a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=0.1)


def test_who_says_not_yet_is_asked_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"], opened=False) as lan:
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        pauses: list[float] = []

        def noted(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 7:
                b.open_epoch(["a-000001"])

        monkeypatch.setattr(a.switch, "sleep", noted)
        a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=10)
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


def test_a_peer_that_is_too_busy_for_one_call_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeswarm_agent.worker.links.CALL_SECONDS", 0.1)
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        busy = b.server._lock
        busy.acquire()  # without which it answers nobody
        threading.Timer(0.3, busy.release).start()
        a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=20)
        a.egress.send("b-000002", OutgoingFrame(KEY, torch.ones(3), epoch=1))
        assert torch.equal(b.mailbox.take(("a-000001", KEY)), torch.ones(3))


def test_a_peer_that_never_has_time_is_given_up_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeswarm_agent.worker.links.CALL_SECONDS", 0.1)
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        began = time.monotonic()
        with (
            lan.ends["b-000002"].server._lock,
            pytest.raises(EdgeswarmError, match="b-000002 did not answer in time") as caught,
        ):
            lan.ends["a-000001"].links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=0.4)
        assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE
        assert time.monotonic() - began > 0.4


@pytest.mark.parametrize("opens", [True, False])
def test_a_stream_that_breaks_as_it_is_opened_is_a_broken_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    def broken(address: str, *, identity: Identity, node_id: str) -> ByteStream:
        if not opens:
            raise ConnectionResetError(104, "Connection reset by peer")
        stream = open_stream(address, identity=identity, node_id=node_id)
        stream.close()
        return stream

    monkeypatch.setattr("edgeswarm_agent.worker.links.open_stream", broken)
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        with pytest.raises(LinkBrokenError, match="the link to b-000002 broke") as caught:
            lan.ends["a-000001"].links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=5)
        assert caught.value.peer == "b-000002"
        assert caught.value.code is ErrorCode.LINK_BROKEN


def test_an_epoch_that_is_over_keeps_no_frames(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        a.egress.send("b-000002", OutgoingFrame(KEY, torch.ones(3), epoch=1))
        address = ("a-000001", KEY)
        b.mailbox.wait_any([(address,)])
        b.switch.halt()
        assert not b.mailbox.has_all([address])
        # What still comes is not kept, and ends the stream.
        a.egress.send("b-000002", OutgoingFrame(KEY, torch.ones(3), epoch=1))
        with pytest.raises(LinkBrokenError, match="b-000002"):
            a.mailbox.take(("b-000002", KEY))
        assert not b.mailbox.has_all([address])


def test_streams_that_the_plan_lacks_or_of_an_epoch_that_is_over_are_refused(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"], opened=False) as lan:
        a, b = lan.ends["a-000001"], lan.ends["b-000002"]
        b.open_epoch([])
        with pytest.raises(EdgeswarmError, match="no stream from a-000001") as caught:
            a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=5)
        assert caught.value.code is ErrorCode.STALE_CALL


def test_an_unreachable_peer_is_named(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        address = lan.address("b-000002")
        lan.ends["b-000002"].server.stop()
        with pytest.raises(EdgeswarmError, match="b-000002"):
            lan.ends["a-000001"].links.open({"b-000002": address}, timeout_seconds=0.2)


def test_a_peer_that_dies_breaks_the_link_at_both_who_send_to_it_and_who_hear_from_it(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        b = lan.ends["b-000002"]
        b.links.close()
        b.server.stop()
        with pytest.raises(LinkBrokenError, match="b-000002"):
            lan.ends["a-000001"].mailbox.take(("b-000002", KEY))


def test_a_halt_wakes_whoever_waits(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        end = lan.ends["a-000001"]
        threading.Timer(0.1, end.switch.halt).start()
        with pytest.raises(HaltedError):
            end.mailbox.take(("b-000002", KEY))


def test_a_frame_of_another_epoch_is_an_error(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002"]) as lan:
        lan.connect()
        b = lan.ends["b-000002"]
        lan.ends["a-000001"].egress.send("b-000002", OutgoingFrame(KEY, torch.ones(1), epoch=7))
        deadline = time.monotonic() + 5
        while not b.switch.is_thrown and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(EdgeswarmError, match="epoch 7"):
            b.switch.check()


def test_a_stream_without_a_ticket_of_its_senders_is_closed(tmp_path: Path) -> None:
    with Lan(tmp_path / "ca", ["a-000001", "b-000002", "c-000003"]) as lan:
        a, b, c = (lan.ends[name] for name in ("a-000001", "b-000002", "c-000003"))
        a.links.open({"b-000002": lan.address("b-000002")}, timeout_seconds=5)
        address = lan.address("b-000002")
        channel = secure_channel(address, identity=a.identity, node_id="b-000002")
        request = agent_pb2.JobReference(job_id=JOB, epoch=1).SerializeToString()
        answer = raw_unary(channel, "edgeswarm.wire.v1.Tensors", "Open")(request, timeout=10)
        channel.close()
        ticket = data_pb2.StreamTicket.FromString(answer)
        for content in (bytes(16), ticket.ticket):  # none, and one that is another's
            stream = open_stream(at_port(address, ticket.port), identity=c.identity, node_id="b-000002")
            stream.send(content)
            stream.wait_for_end()
            stream.close()
        assert not b.switch.is_thrown
