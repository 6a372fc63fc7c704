from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import create_cluster
from edgeswarm.wire import sample_stream
from edgeswarm.wire.byte_stream import ByteStream, StreamListener, TooLateError, open_stream
from edgeswarm.wire.frames import SIZE
from edgeswarm.wire.sample_stream import SamplePart, answer_requests, ask_for_samples
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from tests.stream_end import ends


class Holder:
    """Answers a request of index n with n bytes, on loopback; `answer` may be put in place of that."""

    def __init__(self, folder: Path) -> None:
        identity = create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")[1]
        self.answer: Callable[[data_pb2.FetchSamplesRequest], bytes | bytearray] = content
        self.refused: list[ValueError] = []
        self.listener = StreamListener(identity, behind="127.0.0.1:0", taken=self._serve)
        address = f"127.0.0.1:{self.listener.port}"
        self.connect = partial(open_stream, address, identity=identity, node_id=identity.node_id)

    def _serve(self, stream: ByteStream) -> None:
        try:
            answer_requests(stream, self._answer, doing="Serving samples")
        except ValueError as error:
            self.refused.append(error)
            raise

    def _answer(self, request: data_pb2.FetchSamplesRequest) -> bytes | bytearray:
        return self.answer(request)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holder]:
    holder = Holder(tmp_path_factory.mktemp("holder"))
    yield holder
    holder.listener.stop()


@pytest.fixture
def holder(made: Holder) -> Holder:
    made.answer = content
    made.refused.clear()
    return made


@pytest.fixture
def stream(holder: Holder) -> Iterator[ByteStream]:
    opened = holder.connect()
    yield opened
    opened.close()


def content(request: data_pb2.FetchSamplesRequest) -> bytes:
    (size,) = request.indices
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def request(size: int) -> data_pb2.FetchSamplesRequest:
    return data_pb2.FetchSamplesRequest(job=agent_pb2.JobReference(job_id="digits-1"), indices=[size])


def test_the_parts_are_those_of_the_contract() -> None:
    assert {f"SAMPLE_PART_{part.name}": part.value for part in SamplePart} == dict(data_pb2.SamplePart.items())


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1_500_000), max_size=4))
def test_one_request_after_another_has_its_answer_whole(stream: ByteStream, sizes: list[int]) -> None:
    for size in sizes:
        stream.within(20)
        assert ask_for_samples(stream, request(size)) == content(request(size))


def test_what_is_raised_there_is_raised_here(holder: Holder, stream: ByteStream) -> None:
    def no_item(_: data_pb2.FetchSamplesRequest) -> bytes:
        raise EdgeswarmError(ErrorCode.DATA_FAILED, "Item 13 can't be read.", "Correct it.", detail="Traceback")

    holder.answer = no_item
    with pytest.raises(EdgeswarmError, match="Item 13 can't be read") as caught:
        ask_for_samples(stream, request(1))
    assert (caught.value.code, caught.value.remedy, caught.value.detail) == (
        ErrorCode.DATA_FAILED,
        "Correct it.",
        "Traceback",
    )


def test_a_defect_there_is_told_with_where_it_came_from(holder: Holder, stream: ByteStream) -> None:
    def broken(_: data_pb2.FetchSamplesRequest) -> bytes:
        raise KeyError("no such thing")

    holder.answer = broken
    with pytest.raises(EdgeswarmError, match="Serving samples failed: KeyError: 'no such thing'") as caught:
        ask_for_samples(stream, request(1))
    assert caught.value.code is ErrorCode.INTERNAL
    assert "in broken" in caught.value.detail


def test_more_than_the_bound_is_not_taken(stream: ByteStream) -> None:
    with pytest.raises(EdgeswarmError, match="3000001 bytes of samples at once") as caught:
        ask_for_samples(stream, request(3_000_001), largest_bytes=10**6)
    assert caught.value.code is ErrorCode.LINK_BROKEN


@pytest.mark.parametrize("sent", [SIZE.pack(2**32 - 1), SIZE.pack(3) + b"\xff\xff\xff"])
def test_what_is_no_request_ends_the_stream(holder: Holder, stream: ByteStream, sent: bytes) -> None:
    stream.send(sent)
    assert ends(stream)
    assert len(holder.refused) == 1


def test_an_error_of_another_version_is_told_as_such(stream: ByteStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_stream, "_SAMPLES", 1)  # what the holder sends now says that it is an error
    with pytest.raises(EdgeswarmError, match="an error that can't be read") as caught:
        ask_for_samples(stream, request(10))
    assert caught.value.code is ErrorCode.VERSION_DIFFERS


def test_who_asks_waits_no_longer_than_told(holder: Holder, stream: ByteStream) -> None:
    may_answer = threading.Event()

    def late(_: data_pb2.FetchSamplesRequest) -> bytes:
        may_answer.wait(20)
        return b""

    holder.answer = late
    stream.within(0.05)
    try:
        with pytest.raises(TooLateError):
            ask_for_samples(stream, request(1))
    finally:
        may_answer.set()


def test_it_ends_with_the_one_who_asks(holder: Holder) -> None:
    """Its thread too: no request under way is left, nor an error, where a device has gone."""
    of_others = set(threading.enumerate())
    stream = holder.connect()
    ask_for_samples(stream, request(5))
    own = [thread for thread in set(threading.enumerate()) - of_others if thread.name == "stream"]
    assert own
    stream.close()
    for thread in own:
        thread.join(10)
    assert not any(thread.is_alive() for thread in own)
    assert not holder.refused
