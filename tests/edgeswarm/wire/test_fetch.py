from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_channel, secure_server
from edgeswarm.wire.fetch import BYTES_KEY, FETCH_LAYER, fetch_blob, serve_file, serve_pieces
from edgeswarm.wire.v1 import data_pb2


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder = tmp_path_factory.mktemp("cluster")
    return create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")[1]


@pytest.fixture(scope="module")
def channel(identity: Identity) -> Iterator[grpc.Channel]:
    """To a holder whose layer n is n bytes; layer 13 raises, and of layer 14 it says what is no number of bytes."""

    def fetch(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        layer = data_pb2.FetchLayerRequest.FromString(request).layer
        if layer == 13:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "there is no layer 13")
        if layer == 14:
            context.send_initial_metadata(((BYTES_KEY, "9" * 5000),))
        yield from serve_pieces([content(layer)])

    handlers = [raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(fetch)})]
    server, port = secure_server(identity, address="127.0.0.1:0", workers=2, handlers=handlers)
    server.start()
    with secure_channel(f"127.0.0.1:{port}", identity=identity, node_id=identity.node_id) as opened:
        yield opened
    server.stop(None)


def content(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def ask(channel: grpc.Channel, layer: int, largest_bytes: int = 10**8) -> bytearray:
    request = data_pb2.FetchLayerRequest(layer=layer)
    return fetch_blob(channel, FETCH_LAYER, request, timeout_seconds=20, largest_bytes=largest_bytes)


def test_the_method_is_that_of_the_contract() -> None:
    assert f"/{data_pb2.DESCRIPTOR.package}.Layers/Fetch" == FETCH_LAYER


@pytest.mark.parametrize("size", [0, 1, 5, 6, 17])
def test_parts_are_of_the_size_asked_for_and_make_the_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(content(size))
    for parts in (
        list(serve_pieces([content(size)], 5)),
        list(serve_pieces([memoryview(bytearray(content(size))[:3]), content(size)[3:]], 5)),
        list(serve_pieces((content(size)[place : place + 2] for place in range(0, size, 2)), 5)),
        list(serve_file(path, 5)),
    ):
        assert b"".join(parts) == content(size)
        assert all(len(part) == 5 for part in parts[:-1])


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_a_blob_is_fetched_whole(channel: grpc.Channel, size: int) -> None:
    assert ask(channel, size) == content(size)


def test_more_than_the_bound_is_cut_off(channel: grpc.Channel) -> None:
    with pytest.raises(EdgeswarmError, match="larger than 1000000 bytes") as caught:
        ask(channel, 3_000_001, largest_bytes=10**6)
    assert caught.value.code is ErrorCode.LINK_BROKEN


def test_an_announcement_of_nonsense_is_none(channel: grpc.Channel) -> None:
    assert ask(channel, 14) == content(14)


def test_a_holders_error_is_a_failed_call(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError):
        ask(channel, 13)
