"""The one channel factory, with real servers: who gets in, who doesn't, and what a failure says."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from edgeswarm.config import host_and_port
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import (
    check_address_is_free,
    node_id_of,
    peer,
    peer_node_id,
    raw_service,
    raw_stream_unary,
    raw_stream_unary_handler,
    raw_unary_stream_handler,
    require_role,
    secure_channel,
    secure_server,
)

NODE = "box-00a1b2"
SERVICE = "edgeswarm.test.Raw"
TIMEOUT_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Cluster:
    authority: CertificateAuthority
    agent: Identity
    operator: Identity
    stranger: Identity  # the same node id, signed by another authority


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    authority = CertificateAuthority.create(tmp_path_factory.mktemp("ours"))
    return Cluster(
        authority=authority,
        agent=authority.issue(node_id=NODE, role=Role.AGENT),
        operator=authority.issue(node_id="operator-desk-0000aa", role=Role.OPERATOR),
        stranger=CertificateAuthority.create(tmp_path_factory.mktemp("theirs")).issue(node_id=NODE, role=Role.AGENT),
    )


def who(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    size = sum(len(part) for part in requests)
    return f"{peer_node_id(context)} {peer(context)[1].value} {size}".encode()


def repeat(request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
    for _ in range(3):
        yield request


def busy(_requests: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
    raise EdgeswarmError(ErrorCode.DEVICE_BUSY, "box trains «another» job", "Wait, or stop it.", detail="d" * 50_000)


def break_off(request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
    yield request
    raise EdgeswarmError(ErrorCode.DATA_FAILED, "no more data", "Look at the disk.")


def crash(_requests: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
    raise KeyError("a defect")


def give_up(_requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.CANCELLED, "the server is going")


def operators_only(_requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    return require_role(context, Role.OPERATOR).encode()


def never(_requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(TIMEOUT_SECONDS)
    return b""


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> Iterator[str]:
    service = raw_service(
        SERVICE,
        {
            "Who": raw_stream_unary_handler(who),
            "Busy": raw_stream_unary_handler(busy),
            "Crash": raw_stream_unary_handler(crash),
            "GiveUp": raw_stream_unary_handler(give_up),
            "Never": raw_stream_unary_handler(never),
            "OperatorsOnly": raw_stream_unary_handler(operators_only),
            "Repeat": raw_unary_stream_handler(repeat),
            "BreakOff": raw_unary_stream_handler(break_off),
        },
    )
    server, port = secure_server(cluster.agent, address="127.0.0.1:0", workers=4, handlers=[service])
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(scope="module")
def channel(cluster: Cluster, address: str) -> Iterator[grpc.Channel]:
    with secure_channel(address, identity=cluster.operator, node_id=NODE) as channel:
        yield channel


@contextlib.contextmanager
def relay(address: str, *, silent_seconds: float) -> Iterator[str]:
    """Its address: takes connections at once and passes nothing on for so long, as a device whose processor is busy."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def connect(taken: socket.socket) -> None:
        time.sleep(silent_seconds)
        try:
            onward = socket.create_connection(host_and_port(address))
        except OSError:  # the test, and its server, may be over by then
            return
        threading.Thread(target=pump, args=(taken, onward), daemon=True).start()
        pump(onward, taken)

    def listen(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=connect, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # or accept would wait on


def streamed(channel: grpc.Channel, method: str, request: bytes) -> Iterator[bytes]:
    call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/{method}")
    return call(request, timeout=TIMEOUT_SECONDS)


def failure(channel: grpc.Channel, method: str = "Who", *, timeout_seconds: float = TIMEOUT_SECONDS) -> EdgeswarmError:
    """What a person reads about a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        raw_stream_unary(channel, SERVICE, method)(iter([b"x"]), timeout=timeout_seconds)
    return error_of_call(caught.value, device=NODE, doing="ask")


# --- messages ---------------------------------------------------------------------------------------------------------


def test_bytes_pass_unchanged_in_streams_of_either_direction(channel: grpc.Channel) -> None:
    blob = bytes(range(256)) * 4096  # 1 MiB
    answer = raw_stream_unary(channel, SERVICE, "Who")(iter([blob, blob, b""]), timeout=TIMEOUT_SECONDS)
    assert answer == f"operator-desk-0000aa operator {2 * len(blob)}".encode()
    assert list(streamed(channel, "Repeat", blob)) == [blob] * 3


def test_a_role_is_required_where_it_matters(cluster: Cluster, address: str, channel: grpc.Channel) -> None:
    call = raw_stream_unary(channel, SERVICE, "OperatorsOnly")
    assert call(iter([]), timeout=TIMEOUT_SECONDS) == b"operator-desk-0000aa"
    with secure_channel(address, identity=cluster.agent, node_id=NODE) as as_agent:
        error = failure(as_agent, "OperatorsOnly")
    assert error.code is ErrorCode.TRUST
    assert f"{NODE} is an agent" in error.message


# --- who doesn't get in -----------------------------------------------------------------------------------------------


def test_a_plain_text_client_is_refused(address: str) -> None:
    with grpc.insecure_channel(address) as plain:
        assert failure(plain).code is ErrorCode.DEVICE_UNREACHABLE


def test_a_client_without_a_certificate_is_refused(cluster: Cluster, address: str) -> None:
    credentials = grpc.ssl_channel_credentials(cluster.agent.authority_pem)
    options = [("grpc.ssl_target_name_override", f"{NODE}.edgeswarm")]
    with grpc.secure_channel(address, credentials, options) as anonymous:
        assert "same cluster" in failure(anonymous).remedy


def test_a_client_of_another_authority_is_refused(cluster: Cluster, address: str) -> None:
    # It even knows and trusts our authority: its own certificate is the trouble.
    client = dataclasses.replace(cluster.stranger, authority_pem=cluster.agent.authority_pem)
    with secure_channel(address, identity=client, node_id=NODE) as channel:
        assert "same cluster" in failure(channel).remedy


def test_a_server_of_another_authority_is_refused(cluster: Cluster, address: str) -> None:
    with secure_channel(address, identity=cluster.stranger, node_id=NODE) as channel:
        error = failure(channel)
    assert error.code is ErrorCode.TRUST
    assert NODE in error.message


def test_another_node_at_the_address_is_refused(cluster: Cluster, address: str) -> None:
    with secure_channel(address, identity=cluster.operator, node_id="box-ffffff") as channel:
        assert failure(channel).code is ErrorCode.TRUST


def test_the_join_servers_certificate_opens_nothing(cluster: Cluster, address: str) -> None:
    key_pem, certificate_pem = cluster.authority.issue_join_server()
    client = Identity("join", key_pem, certificate_pem, cluster.authority.certificate_pem)
    with secure_channel(address, identity=client, node_id=NODE) as channel:
        assert failure(channel).code in (ErrorCode.TRUST, ErrorCode.DEVICE_UNREACHABLE)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_servicer_arrives_whole(channel: grpc.Channel) -> None:
    error = failure(channel, "Busy")
    assert (error.code, error.message) == (ErrorCode.DEVICE_BUSY, "box trains «another» job")
    assert error.remedy == "Wait, or stop it."
    assert error.detail == "d" * 8000  # only the end of a long traceback travels


def test_an_error_in_the_middle_of_a_stream_arrives(channel: grpc.Channel) -> None:
    parts = streamed(channel, "BreakOff", b"first")
    assert next(parts) == b"first"
    with pytest.raises(grpc.RpcError) as caught:
        next(parts)
    assert error_of_call(caught.value, device=NODE).message == "no more data"


def test_a_defect_arrives_with_its_traceback(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        error = failure(channel, "Crash")
    assert error.code is ErrorCode.INTERNAL
    assert "KeyError: 'a defect'" in error.message
    assert "in crash" in error.detail


def test_an_unknown_method_means_another_version(channel: grpc.Channel) -> None:
    assert failure(channel, "Nothing").code is ErrorCode.VERSION_DIFFERS


def test_a_deadline_that_passes_names_the_device(channel: grpc.Channel) -> None:
    error = failure(channel, "Never", timeout_seconds=0.2)
    assert error.code is ErrorCode.DEVICE_UNREACHABLE
    assert error.message == f"{NODE} did not answer in time (tried to ask)."


def test_nobody_at_the_address(cluster: Cluster, closed_address: str) -> None:
    with secure_channel(closed_address, identity=cluster.operator, node_id=NODE) as channel:
        error = failure(channel)
    assert error.code is ErrorCode.DEVICE_UNREACHABLE
    assert "edgeswarm-agent run" in error.remedy


def test_a_call_that_is_ended_by_its_caller(channel: grpc.Channel) -> None:
    call = raw_stream_unary(channel, SERVICE, "Never").future(iter([b"x"]), timeout=TIMEOUT_SECONDS)
    call.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        call.result()


def test_a_call_that_the_other_side_ends_may_be_made_again(channel: grpc.Channel) -> None:
    error = failure(channel, "GiveUp")
    assert error.code is ErrorCode.LINK_BROKEN
    assert error.message == f"The call to {NODE} was ended before its answer (tried to ask)."
    assert error.detail == "the server is going"


def test_a_device_that_takes_its_time_for_the_handshake_is_waited_for(cluster: Cluster, address: str) -> None:
    with (
        relay(address, silent_seconds=0.5) as slow_address,
        secure_channel(slow_address, identity=cluster.operator, node_id=NODE) as channel,
    ):
        answer = raw_stream_unary(channel, SERVICE, "Who")(iter([b"x"]), timeout=TIMEOUT_SECONDS)
    assert answer == b"operator-desk-0000aa operator 1"


def test_a_handshake_without_an_end_is_no_matter_of_trust(
    cluster: Cluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeswarm.wire.channel.CONNECT_SECONDS", 0.2)
    with (
        relay(address, silent_seconds=1.0) as slow_address,
        secure_channel(slow_address, identity=cluster.operator, node_id=NODE) as channel,
    ):
        error = failure(channel)
    assert error.code is ErrorCode.DEVICE_UNREACHABLE
    assert "was not done with the handshake in time" in error.message


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_the_node_id_at_an_address(cluster: Cluster, address: str) -> None:
    assert node_id_of(address, identity=cluster.operator) == NODE


def test_the_node_id_of_a_stranger_is_not_believed(cluster: Cluster, address: str) -> None:
    with pytest.raises(EdgeswarmError, match="doesn't belong to this cluster") as caught:
        node_id_of(address, identity=cluster.stranger)
    assert caught.value.code is ErrorCode.TRUST


def test_the_node_id_where_nobody_or_something_else_answers(cluster: Cluster, closed_address: str) -> None:
    with pytest.raises(EdgeswarmError, match=f"Nobody answers at {closed_address}") as caught:
        node_id_of(closed_address, identity=cluster.operator)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EdgeswarmError, match="Nobody answers"):
            node_id_of(address, identity=cluster.operator, timeout_seconds=0.2)


def test_a_taken_port_is_named(cluster: Cluster, address: str) -> None:
    with pytest.raises(EdgeswarmError, match=f"listens on {address} already") as caught:
        secure_server(cluster.agent, address=address, workers=1)
    assert caught.value.code is ErrorCode.PORT_IN_USE


def test_an_address_that_this_machine_does_not_have(cluster: Cluster) -> None:
    with pytest.raises(EdgeswarmError, match=r"Can't listen on 203\.0\.113\.9:7600") as caught:
        secure_server(cluster.agent, address="203.0.113.9:7600", workers=1)
    assert caught.value.code is ErrorCode.CONFIG


@pytest.mark.parametrize("address", ["two words:7600", "box:port", "::1:7600", "a..b:7600", f"{'x' * 64}.local:7600"])
def test_what_is_no_address_is_a_wrong_setting(address: str) -> None:
    with pytest.raises(EdgeswarmError, match="Can't listen on") as caught:
        check_address_is_free(address)
    assert caught.value.code is ErrorCode.CONFIG


def test_a_port_is_free_again_after_its_server(cluster: Cluster, closed_address: str) -> None:
    for _ in range(2):
        server, port = secure_server(cluster.agent, address=closed_address, workers=1)
        server.start()
        assert closed_address.endswith(f":{port}")
        server.stop(0).wait()
