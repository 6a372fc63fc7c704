"""Samples that come from the data service: over which streams, how many at once; what a feed makes of them is in test_feed.py."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_CALL_BYTES, MOST_SAMPLES_A_CALL
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import ByteStream, StreamListener, open_stream
from edgeswarm.wire.sample_stream import SamplePart, answer_requests
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm_agent.worker.served_samples import ServedSamples

from .sample_service import JOB, Cluster

DATA = [(index, -index) for index in range(60)]


class Streams:
    """Opens streams, and remembers them."""

    def __init__(self, connect: Callable[[], ByteStream]) -> None:
        self._connect = connect
        self.opened: list[ByteStream] = []

    def __call__(self) -> ByteStream:
        self.opened.append(self._connect())
        return self.opened[-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), DATA)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(made: Cluster) -> Cluster:
    made.service.may_answer.set()
    made.service.calls.clear()
    return made


@pytest.fixture
def streams(cluster: Cluster) -> Streams:
    return Streams(cluster.connect)


def test_one_stream_serves_all_calls_and_none_is_opened_for_what_is_kept(cluster: Cluster, streams: Streams) -> None:
    source = cluster.source(connect=streams)
    for index in (3, 4, 3, 5):
        assert source.read([index], SamplePart.TARGETS).item(index) == -index
        source.cancel()  # as a feed does at its end: the next one goes on with the stream
    assert len(streams.opened) == 1
    assert source.calls == len(cluster.service.calls) == 3


def test_a_stream_that_broke_is_opened_again(cluster: Cluster, streams: Streams) -> None:
    source = cluster.source(connect=streams)
    for index in range(3):
        assert source.read([index], SamplePart.BOTH).item(index) == DATA[index]
        streams.opened[-1].break_off()
    assert len(streams.opened) == 3


@pytest.mark.parametrize("sent_bytes", [0, 3, 200])
def test_one_that_breaks_while_the_answer_comes_too_but_not_twice(tmp_path: Path, sent_bytes: int) -> None:
    """sent_bytes: of the answer before that, of whose head there are nine."""
    identity = create_cluster(authority_folder=tmp_path / "a", operator_folder=tmp_path / "o")[1]
    breaks_left = 0

    def serve(stream: ByteStream) -> None:
        nonlocal breaks_left
        if breaks_left:
            breaks_left -= 1
            stream.receive_into(memoryview(bytearray(4)))
            stream.send((struct.pack("<QB", 1000, 0) + bytes(1000))[:sent_bytes])
        else:
            answer_requests(stream, lambda _: encode_items([(1, -1)], SamplePart.BOTH), doing="Serving samples")

    listener = StreamListener(identity, behind="127.0.0.1:0", taken=serve)
    connect = partial(open_stream, f"127.0.0.1:{listener.port}", identity=identity, node_id=identity.node_id)
    with contextlib.closing(ServedSamples(connect, JOB, holder="desk")) as source:
        breaks_left = 1
        assert source.read([1], SamplePart.BOTH).item(1) == (1, -1)
    with contextlib.closing(ServedSamples(connect, JOB, holder="desk")) as source:
        breaks_left = 2
        with pytest.raises(EdgeswarmError, match=r"service on desk can't be reached: .* broke .*, twice") as caught:
            source.read([1], SamplePart.BOTH)
        assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE
    listener.stop()


def test_one_whose_certificate_is_refused_is_told_so(tmp_path: Path) -> None:
    """In TLS 1.3 it has shaken hands before the other side has looked at it."""
    ours, other = (
        create_cluster(authority_folder=tmp_path / name / "a", operator_folder=tmp_path / name / "o")[1]
        for name in ("ours", "other")
    )
    listener = StreamListener(ours, behind="127.0.0.1:0", taken=lambda stream: None)
    mixed = Identity(other.node_id, other.key_pem, other.certificate_pem, ours.authority_pem)
    connect = partial(open_stream, f"127.0.0.1:{listener.port}", identity=mixed, node_id=ours.node_id)
    with pytest.raises(EdgeswarmError) as caught:
        ServedSamples(connect, JOB, holder="desk").read([1], SamplePart.BOTH)
    # A reset may overtake the refusal.
    assert caught.value.code in (ErrorCode.TRUST, ErrorCode.DEVICE_UNREACHABLE)
    listener.stop()


def test_a_service_that_is_gone_is_named(tmp_path: Path) -> None:
    identity = create_cluster(authority_folder=tmp_path / "a", operator_folder=tmp_path / "o")[1]
    connect = partial(open_stream, "127.0.0.1:9", identity=identity, node_id=identity.node_id)
    with pytest.raises(EdgeswarmError, match=f"{identity.node_id} doesn't answer at 127.0.0.1:9") as caught:
        ServedSamples(connect, JOB, holder="desk").read([1], SamplePart.BOTH)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_told(cluster: Cluster, streams: Streams) -> None:
    cluster.service.may_answer.clear()
    source = cluster.source(connect=streams, timeout_seconds=0.05)
    with pytest.raises(EdgeswarmError, match=r"did not send samples within 0\.05 s") as caught:
        source.read([1], SamplePart.BOTH)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE
    assert len(streams.opened) == 1, "a second question would wait behind the first"
    cluster.service.may_answer.set()


@pytest.mark.parametrize("end", [ServedSamples.cancel, ServedSamples.close])
def test_a_call_under_way_can_be_ended(
    cluster: Cluster, streams: Streams, end: Callable[[ServedSamples], None]
) -> None:
    cluster.service.may_answer.clear()
    source = cluster.source(connect=streams)
    caught: list[EdgeswarmError] = []

    def read() -> None:
        try:
            source.read([1], SamplePart.BOTH)
        except EdgeswarmError as error:
            caught.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    while reading.is_alive():  # as a feed does it: the call may just be about to begin
        end(source)
        reading.join(0.02)
    cluster.service.may_answer.set()
    assert [error.code for error in caught] == [ErrorCode.LINK_BROKEN]
    if end is ServedSamples.cancel:
        assert source.read([2], SamplePart.BOTH).item(2) == DATA[2]
    else:
        opened = len(streams.opened)
        with pytest.raises(EdgeswarmError, match="nobody waits"):
            source.read([2], SamplePart.BOTH)
        assert len(streams.opened) == opened


def test_closing_ends_the_stream(cluster: Cluster, streams: Streams) -> None:
    source = cluster.source(connect=streams)
    source.read([1], SamplePart.BOTH)
    source.close()
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        streams.opened[0].send(b"more")


def test_of_slow_samples_fewer_are_asked_for_at_once(cluster: Cluster) -> None:
    """So that one call takes no longer than ten seconds, and who waits behind it isn't taken for dead."""
    source = cluster.source()
    assert source.samples_a_call() == 1, "nothing is known yet"
    source._sample_bytes, source.fetched_samples, source.fetch_seconds = 1024, 100, 0.1
    assert source.samples_a_call() == FEED_CALL_BYTES // 1024
    source._sample_bytes, source.fetch_seconds = 8, 1e-6
    assert source.samples_a_call() == MOST_SAMPLES_A_CALL
    source._sample_bytes, source.fetch_seconds = 1024, 50.0
    assert source.samples_a_call() == 20
    source.fetch_seconds = 5000.0
    assert source.samples_a_call() == 1
