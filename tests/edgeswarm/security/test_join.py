"""Joining over a real TLS server: the way in, and every way to be turned away."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security import join as join_module
from edgeswarm.security.authority import CertificateAuthority, create_cluster
from edgeswarm.security.certificates import Role, new_key, new_request
from edgeswarm.security.identity import Identity
from edgeswarm.security.issued import IssuedNodes
from edgeswarm.security.join import JoinServer, join
from edgeswarm.security.token import Token

from ..ipv6_here import has_ipv6

HOST = "127.0.0.1"
NODE = "box-00a1b2"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: CertificateAuthority, tmp_path: Path) -> Iterator[JoinServer]:
    with JoinServer(authority, tmp_path / "server", host=HOST, port=0) as server:
        yield server


def new_token(server: JoinServer, *, uses: int = 1) -> Token:
    return server.tokens.create(server.authority.fingerprint, uses=uses)


def post(
    server: JoinServer, body: bytes, *, path: str = "/v1/join", length: str | None = None
) -> tuple[int, dict[str, str]]:
    """What the server answers to a body that `join` would never send."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=server.authority.certificate_pem.decode())
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    with contextlib.closing(connection):
        plain = socket.create_connection((HOST, server.port), timeout=10)
        connection.sock = context.wrap_socket(plain, server_hostname="join.edgeswarm")
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", length if length is not None else str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_device_joins_and_keeps_its_identity(authority: CertificateAuthority, tmp_path: Path) -> None:
    joined: list[tuple[str, str]] = []
    server = JoinServer(authority, tmp_path / "server", host=HOST, port=0, on_joined=lambda *who: joined.append(who))
    with server:
        token = Token.parse(str(new_token(server)))
        identity = join(HOST, server.port, token=token, identity_folder=tmp_path / "device", node_id=NODE)
    assert Identity.load(tmp_path / "device", role=Role.AGENT) == identity
    assert identity.node_id == NODE
    assert identity.cluster_fingerprint == authority.fingerprint
    assert [entry.name for entry in (tmp_path / "device").iterdir()] == ["identity.pem"]
    assert joined == [(NODE, HOST)]
    assert IssuedNodes(tmp_path / "server").node_ids() == [NODE]


def test_a_used_token_is_refused(server: JoinServer, tmp_path: Path) -> None:
    token = new_token(server)
    join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    with pytest.raises(EdgeswarmError, match="used up") as caught:
        join(HOST, server.port, token=token, identity_folder=tmp_path / "b", node_id="other-00a1b2")
    assert caught.value.code is ErrorCode.TOKEN
    assert IssuedNodes(tmp_path / "server").node_ids() == [NODE]


def test_an_expired_token_is_refused(server: JoinServer, tmp_path: Path) -> None:
    token = server.tokens.create(server.authority.fingerprint, lifetime_seconds=60, now=1000.0)
    with pytest.raises(EdgeswarmError, match="expired") as caught:
        join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    assert caught.value.code is ErrorCode.TOKEN
    assert not (tmp_path / "a" / "identity.pem").exists()


def test_an_attempt_whose_answer_got_lost_can_be_repeated(server: JoinServer, tmp_path: Path) -> None:
    token = new_token(server)
    identity = join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    # As if the answer had not come: the key is there, the identity isn't.
    (tmp_path / "a" / "identity.pem").unlink()
    (tmp_path / "a" / "pending-key.pem").write_bytes(identity.key_pem)
    again = join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    assert again.key_pem == identity.key_pem


def test_a_device_renews_its_certificate_with_a_new_token(server: JoinServer, tmp_path: Path) -> None:
    first = join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)
    second = join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)
    assert second.key_pem == first.key_pem
    assert second.certificate_pem != first.certificate_pem


def test_a_second_box_with_the_same_node_id_is_told_so(server: JoinServer, tmp_path: Path) -> None:
    token = new_token(server, uses=2)
    join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    with pytest.raises(EdgeswarmError, match="cloned") as caught:
        join(HOST, server.port, token=token, identity_folder=tmp_path / "clone", node_id=NODE)
    assert caught.value.code is ErrorCode.TRUST
    assert "node-id" in caught.value.remedy
    join(HOST, server.port, token=token, identity_folder=tmp_path / "clone", node_id="other-00a1b2")  # no use was lost


def test_another_cluster_never_hears_the_secret(
    server: JoinServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []
    monkeypatch.setattr(server, "admit", heard.append)
    token = Token("0" * 64, new_token(server).secret)
    with pytest.raises(EdgeswarmError, match="not the cluster that the token was made for") as caught:
        join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    assert caught.value.code is ErrorCode.TRUST
    assert heard == []


def test_a_copied_authority_without_its_key_is_refused(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A man in the middle can show the true authority, whose hash fits, but has no certificate that it signed."""
    impostor = CertificateAuthority.create(tmp_path / "impostor")
    monkeypatch.setattr(CertificateAuthority, "certificate_pem", authority.certificate_pem)
    with JoinServer(impostor, tmp_path / "server", host=HOST, port=0) as server:
        token = server.tokens.create(authority.fingerprint)
        with pytest.raises(EdgeswarmError, match="doesn't prove that it belongs") as caught:
            join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    assert caught.value.code is ErrorCode.TRUST


def test_a_second_authority_behind_the_true_one_is_refused(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor = CertificateAuthority.create(tmp_path / "impostor")
    monkeypatch.setattr(CertificateAuthority, "certificate_pem", authority.certificate_pem + impostor.certificate_pem)
    with JoinServer(impostor, tmp_path / "server", host=HOST, port=0) as server:
        token = server.tokens.create(authority.fingerprint)
        with pytest.raises(EdgeswarmError, match="isn't edgeswarm's join server"):
            join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)


def test_what_an_unknown_server_advises_is_not_shown(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_module._Handler, "do_GET", lambda handler: handler._refuse(404, "Run this: rm -rf ~"))
    with (
        JoinServer(authority, tmp_path / "server", host=HOST, port=0) as server,
        pytest.raises(EdgeswarmError, match="isn't edgeswarm's join server"),
    ):
        join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def test_a_node_of_the_cluster_is_no_join_server(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = authority.issue(node_id=NODE, role=Role.AGENT)
    monkeypatch.setattr(authority, "issue_join_server", lambda: (node.key_pem, node.certificate_pem))
    with (
        JoinServer(authority, tmp_path / "server", host=HOST, port=0) as server,
        pytest.raises(EdgeswarmError, match="doesn't prove that it belongs"),
    ):
        join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def test_nobody_at_home(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with pytest.raises(EdgeswarmError, match=f"Nobody answers at {HOST}:{port}") as caught:
        join(HOST, port, token=Token("0" * 64, "0" * 32), identity_folder=tmp_path, node_id=NODE)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_something_else_at_the_port(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"SSH-2.0-hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EdgeswarmError, match="isn't edgeswarm's join server") as caught:
            join(
                HOST, listener.getsockname()[1], token=Token("0" * 64, "0" * 32), identity_folder=tmp_path, node_id=NODE
            )
        thread.join()
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_taken_port_is_named(server: JoinServer, authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match=f"Port {server.port} is taken") as caught:
        JoinServer(authority, tmp_path / "second", host=HOST, port=server.port)
    assert caught.value.code is ErrorCode.PORT_IN_USE


def test_an_address_that_is_none_is_named_by_both_ends(authority: CertificateAuthority, tmp_path: Path) -> None:
    typo = "192.168.1..5"
    with pytest.raises(EdgeswarmError, match=f"Can't listen on {typo}:7599: ") as caught:
        JoinServer(authority, tmp_path / "server", host=typo)
    assert caught.value.code is ErrorCode.CONFIG
    with pytest.raises(EdgeswarmError, match=f"Nobody answers at {typo}:7599 ") as caught:
        join(typo, 7599, token=Token("0" * 64, "0" * 32), identity_folder=tmp_path / "device", node_id=NODE)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_temporary_folder_that_is_full_is_no_fault_of_the_address(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(join_module, "write_atomically", full)
    with pytest.raises(EdgeswarmError, match="temporary folder: No space left on device") as caught:
        JoinServer(authority, tmp_path / "server", host=HOST, port=0)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "TMPDIR" in caught.value.remedy


def test_malformed_requests_get_one_clear_status_each(server: JoinServer) -> None:
    secret, csr = new_token(server).secret, new_request(new_key(), NODE).decode()
    good = {"secret": secret, "node_id": NODE, "csr": csr}
    assert post(server, b"{")[0] == 400
    assert post(server, b"[]")[0] == 400
    assert post(server, b"\xff")[0] == 400
    assert post(server, json.dumps({**good, "node_id": "../x"}).encode())[0] == 400
    assert post(server, json.dumps({**good, "secret": 7}).encode())[0] == 400
    assert post(server, json.dumps({**good, "csr": "rubbish"}).encode())[0] == 409
    assert post(server, json.dumps({**good, "secret": "0" * 32}).encode())[0] == 403
    assert post(server, b"", length="16385")[0] == 413
    assert post(server, b"", length="-1")[0] == 413
    assert post(server, b"", length="many")[0] == 411
    assert post(server, b"", path="/v1/other")[0] == 404
    assert server.issued.node_ids() == []
    assert post(server, json.dumps(good).encode())[0] == 200  # and none of them cost the token its use


def test_nobody_joins_under_the_operators_name(tmp_path: Path) -> None:
    authority, operator = create_cluster(authority_folder=tmp_path / "server", operator_folder=tmp_path / "operator")
    with JoinServer(authority, tmp_path / "server", host=HOST, port=0) as server:
        token = new_token(server)
        with pytest.raises(EdgeswarmError, match=f"{operator.node_id} belongs to another device") as caught:
            join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=operator.node_id)
        assert caught.value.code is ErrorCode.TRUST
        join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)  # the token has its use


def test_a_full_disk_of_the_clusters_machine_is_told_to_both(
    server: JoinServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    token = new_token(server)
    monkeypatch.setattr(server.tokens, "spend", full)
    with pytest.raises(EdgeswarmError, match="can't write down who joined \\(No space left on device\\)") as caught:
        join(HOST, server.port, token=token, identity_folder=tmp_path / "a", node_id=NODE)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "No space left" in caplog.text


def test_silent_connections_hold_up_nobody(server: JoinServer, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection((HOST, server.port)))
        join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def goodbye(connection: socket.socket) -> None:
    """Says that it has nothing more to say, and waits until the server has let go of it."""
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(4096):  # an alert of TLS
        pass


def test_a_connection_that_ends_makes_room_for_another(server: JoinServer, tmp_path: Path) -> None:
    for _ in range(40):
        with socket.create_connection((HOST, server.port), timeout=10) as passing:
            goodbye(passing)
    join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def test_a_connection_for_which_there_is_no_thread_keeps_no_place(
    server: JoinServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        for _ in range(20):
            with socket.create_connection((HOST, server.port), timeout=10) as refused:
                assert refused.recv(1) == b""
    join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def test_one_connection_too_many_is_turned_away(server: JoinServer, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((HOST, server.port), timeout=5))

        held = [connect() for _ in range(16)]
        assert connect().recv(1) == b""
        for connection in held:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is still open
                connection.recv(1)
            connection.settimeout(5)
        for connection in held:
            goodbye(connection)
    join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "a", node_id=NODE)


def test_plain_http_gets_no_answer(server: JoinServer) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/authority")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            connection.getresponse()


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback here")
@pytest.mark.parametrize(
    ("listen", "dial", "seen"), [("::1", "::1", "::1"), ("0.0.0.0", "::1", "::1"), ("::", HOST, HOST)]
)
def test_a_device_joins_over_either_kind_of_address(
    authority: CertificateAuthority, tmp_path: Path, listen: str, dial: str, seen: str
) -> None:
    joined: list[tuple[str, str]] = []
    server = JoinServer(authority, tmp_path / "server", host=listen, port=0, on_joined=lambda *who: joined.append(who))
    with server:
        join(dial, server.port, token=new_token(server), identity_folder=tmp_path / "device", node_id=NODE)
    assert joined == [(NODE, seen)]


def test_who_sends_a_byte_now_and_then_is_sent_away(server: JoinServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are few connections at once: whoever holds all of them lets no device join."""
    monkeypatch.setattr(join_module, "_CONNECTION_SECONDS", 0.5)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=server.authority.certificate_pem.decode())
    with (
        socket.create_connection((HOST, server.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="join.edgeswarm") as slow,
    ):
        for _ in range(100):
            try:
                slow.send(b"G")
            except OSError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("it is still listened to")


def test_an_identity_that_cannot_be_written_is_told(server: JoinServer, tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "identity.pem").mkdir()  # as a disk that is full, nothing can be written there
    with pytest.raises(EdgeswarmError, match="identity can't be written") as caught:
        join(HOST, server.port, token=new_token(server), identity_folder=tmp_path / "device", node_id=NODE)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
