"""Joining a cluster, over HTTPS; both ends.

    device                                           operator's machine (`edgeswarm token create`)
      |  GET /v1/authority        (TLS, unverified)     |
      | ----------------------------------------------> |
      |  authority's certificate                        |
      | <---------------------------------------------- |
      |  sha256 of it == the one in the token?          |
      |  no: stop here, nothing secret has been said    |
      |                                                 |
      |  POST /v1/join  {secret, node_id, csr}          |
      |  (TLS, verified against that authority)         |
      | ----------------------------------------------> |  token good? node id free? request signed by its key?
      |  {certificate}                                  |
      | <---------------------------------------------- |

Refusals are the JSON of an EdgeswarmError under a status of 4xx.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.client
import http.server
import json
import logging
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ..errors import EdgeswarmError, ErrorCode
from ..listening import bound_socket, plain_address
from .authority import JOIN_SERVER_NAME, CertificateAuthority
from .certificates import (
    BEGIN_AGAIN,
    Role,
    certificate_fingerprint,
    certificate_holder,
    check_dates,
    key_fingerprint,
    key_from_pem,
    key_to_pem,
    new_key,
    new_request,
    public_key_of_request,
    single_certificate,
)
from .files import make_private_folder, write_atomically
from .identity import FILE_NAME as IDENTITY_FILE
from .identity import Identity
from .issued import IssuedNodes
from .node_id import is_node_id
from .token import Token, TokenStore

DEFAULT_JOIN_PORT = 7599
AUTHORITY_PATH = "/v1/authority"
JOIN_PATH = "/v1/join"

_BODY_LIMIT_BYTES = 16 * 1024  # a request is about 1 KiB, an answer 2
_TIMEOUT_SECONDS = 10.0  # for each read and write, on both ends
_CONNECTION_SECONDS = 30.0  # for all of what one connection asks
_CONNECTIONS = 16  # at once; more are turned away, so that nobody can make us start threads without end
_PENDING_KEY_FILE = "pending-key.pem"

_STATUS = {ErrorCode.TOKEN: 403, ErrorCode.TRUST: 409}

_log = logging.getLogger(__name__)


# --- the device's end -------------------------------------------------------------------------------------------------


def join(host: str, port: int, *, token: Token, identity_folder: Path, node_id: str) -> Identity:
    """Join the cluster of `token` at its operator's machine, and save the identity that it gives to `identity_folder`.

    Raises EdgeswarmError: DEVICE_UNREACHABLE (nobody answers), TRUST (not the token's cluster, or node id taken),
    TOKEN (unknown, expired, used up), OUTPUT_FAILED. Until the identity is saved, an older one in the folder stays as it is.
    """
    try:
        return _join(host, port, token=token, identity_folder=identity_folder, node_id=node_id)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"This device's identity can't be written to {identity_folder}: {error.strerror or error}.",
            "Free space there, or let this user write to it, and join again; the token is still good for this device.",
        ) from error


def _join(host: str, port: int, *, token: Token, identity_folder: Path, node_id: str) -> Identity:
    make_private_folder(identity_folder)
    authority_pem = _fetch_authority(host, port, token)
    key = _device_key(identity_folder, node_id)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority_pem.decode())
    body = {"secret": token.secret, "node_id": node_id, "csr": new_request(key, node_id).decode()}
    answer = _request(host, port, context, JOIN_PATH, body=json.dumps(body).encode())
    try:
        certificate_pem = json.loads(answer)["certificate"].encode()
        certificate = single_certificate(certificate_pem)
        holder = certificate_holder(certificate)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_a_join_server(host, port) from error
    if holder != (node_id, Role.AGENT) or certificate.public_key() != key.public_key():
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"{host}:{port} answered with a certificate that isn't for this device.",
            "Update edgeswarm on both machines to the same version.",
        )
    check_dates(certificate, whose=node_id)
    identity = Identity(node_id, key_to_pem(key), certificate_pem, authority_pem)
    identity.save(identity_folder)
    (identity_folder / _PENDING_KEY_FILE).unlink(missing_ok=True)
    return identity


def _fetch_authority(host: str, port: int, token: Token) -> bytes:
    """The authority's certificate (PEM) whose hash is in the token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Nothing is verified here, and nothing is said: what comes back is compared with the token's hash.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        certificate = single_certificate(_request(host, port, context, AUTHORITY_PATH))
    except ValueError as error:
        raise _not_a_join_server(host, port) from error
    if not hmac.compare_digest(certificate_fingerprint(certificate), token.authority_fingerprint):
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"{host}:{port} is not the cluster that the token was made for: its authority has another hash. "
            "The token's secret was not sent.",
            "Check the host, and that the token is from that machine's `edgeswarm token create`.",
        )
    check_dates(certificate, whose="the cluster authority", renewal=BEGIN_AGAIN)
    # Encoded again from what was compared, so that nothing else in the answer can be taken for trusted.
    return certificate.public_bytes(serialization.Encoding.PEM)


def _device_key(identity_folder: Path, node_id: str) -> ec.EllipticCurvePrivateKey:
    """The key to join with: that of an attempt whose answer got lost, that of the identity to renew, or a new one."""
    pending = identity_folder / _PENDING_KEY_FILE
    try:
        return key_from_pem(pending.read_bytes())
    except (FileNotFoundError, ValueError):
        pass  # none yet, or one that was cut off: it was of no use to anybody
    try:
        held = Identity.from_pem((identity_folder / IDENTITY_FILE).read_bytes())
        key = key_from_pem(held.key_pem) if held.node_id == node_id else new_key()
    except (FileNotFoundError, ValueError):
        key = new_key()
    write_atomically(pending, key_to_pem(key))
    return key


def _request(host: str, port: int, context: ssl.SSLContext, path: str, *, body: bytes | None = None) -> bytes:
    """The answer to a GET, or to a POST where there is a body; raises EdgeswarmError for every way to fail."""
    try:
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)) as connection:
            plain = socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS)
            # The name in the server's certificate is always the same, whatever the address that the person typed.
            connection.sock = context.wrap_socket(plain, server_hostname=JOIN_SERVER_NAME)
            connection.request(
                "GET" if body is None else "POST", path, body, {"Content-Type": "application/json"} if body else {}
            )
            answer = connection.getresponse()
            data = answer.read(_BODY_LIMIT_BYTES + 1)
            status = answer.status
    except ssl.SSLCertVerificationError as error:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"{host}:{port} doesn't prove that it belongs to the token's cluster ({error.verify_message}).",
            "Check the host, and the clocks of both machines.",
        ) from error
    except (ssl.SSLError, http.client.HTTPException) as error:
        raise _not_a_join_server(host, port) from error
    except (OSError, UnicodeError) as error:  # the latter of what no host can be called, as 192.168.1..5
        raise EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"Nobody answers at {host}:{port} ({getattr(error, 'strerror', None) or error}).",
            "Check the host and the network, and that `edgeswarm token create` still waits there for devices to join.",
        ) from error
    if len(data) > _BODY_LIMIT_BYTES:
        raise _not_a_join_server(host, port)
    if status == 200:
        return data
    if context.verify_mode is ssl.CERT_NONE:  # anybody may say anything there, and a person would do what it advises
        raise _not_a_join_server(host, port)
    try:
        refusal = {key: str(value) for key, value in json.loads(data).items()}
    except (ValueError, AttributeError) as error:
        raise _not_a_join_server(host, port) from error
    raise EdgeswarmError.from_json(refusal)


def _not_a_join_server(host: str, port: int) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DEVICE_UNREACHABLE,
        f"What answers at {host}:{port} isn't edgeswarm's join server.",
        f"Check host and port (the default port is {DEFAULT_JOIN_PORT}).",
    )


# --- the operator's end -----------------------------------------------------------------------------------------------


class JoinServer:
    """The HTTPS endpoint that devices join through; runs in threads of its own from `start` to `stop`.

    folder: the operator's folder with tokens and issued node ids.
    on_joined: called with (node id, address) after each device that joined, from the server's thread.
    Raises EdgeswarmError (PORT_IN_USE, CONFIG, OUTPUT_FAILED) from the constructor. Port 0 takes any free port: see `port`.
    """

    def __init__(
        self,
        authority: CertificateAuthority,
        folder: Path,
        *,
        host: str = "0.0.0.0",
        port: int = DEFAULT_JOIN_PORT,
        on_joined: Callable[[str, str], None] | None = None,
    ) -> None:
        self.authority = authority
        self.tokens = TokenStore(folder)
        self.issued = IssuedNodes(folder)
        self.on_joined = on_joined
        tls = _tls_context(authority)
        try:
            self._server = _Server((host, port), self, tls)
        except UnicodeError as error:  # of what no host can be called, as 192.168.1..5
            raise _cannot_listen(host, port, str(error)) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EdgeswarmError(
                    ErrorCode.PORT_IN_USE,
                    f"Port {port} is taken: devices can't join through it.",
                    "Is another `edgeswarm token create` waiting? End it, or choose another port with --join-port.",
                ) from error
            raise _cannot_listen(host, port, error.strerror or str(error)) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="join-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> JoinServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def admit(self, request: dict[str, Any]) -> tuple[str, bytes]:
        """(node id, certificate PEM) for a join request; raises EdgeswarmError (TOKEN, TRUST) or ValueError."""
        secret, node_id, csr = (request.get(name) for name in ("secret", "node_id", "csr"))
        if not (isinstance(secret, str) and isinstance(node_id, str) and isinstance(csr, str)):
            raise ValueError("secret, node_id and csr must be texts")
        if not is_node_id(node_id):
            raise ValueError("node_id is not a node id")
        csr_pem = csr.encode()
        fingerprint = key_fingerprint(public_key_of_request(csr_pem))
        # The token is spent inside the claim: a node id that is taken costs no use, and a bad token claims nothing.
        with self.issued.claim(node_id, key_fingerprint=fingerprint):
            self.tokens.spend(secret, node_id=node_id, key_fingerprint=fingerprint)
            certificate = self.authority.sign(csr_pem, node_id=node_id, role=Role.AGENT)
        return node_id, certificate


def _tls_context(authority: CertificateAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    key_pem, certificate_pem = authority.issue_join_server()
    # The ssl module takes a key from a file only: one in a folder that nobody else can enter, gone at once.
    try:
        with tempfile.TemporaryDirectory(prefix="edgeswarm-join-") as folder:
            path = Path(folder) / "join.pem"
            write_atomically(path, key_pem + certificate_pem)
            context.load_cert_chain(path)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The join server's key can't be written to a temporary folder: {error.strerror or error}.",
            "Free space there, or set TMPDIR to a folder with more.",
        ) from error
    return context


def _cannot_listen(host: str, port: int, why: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.CONFIG, f"Can't listen on {host}:{port}: {why}.", "Choose another address or port.")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], joins: JoinServer, tls: ssl.SSLContext) -> None:
        self.joins = joins
        self._tls = tls
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        # HTTPServer's own knows IPv4 alone, and looks the host's name up, which takes many seconds on a network without DNS.
        self.socket = bound_socket(*address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "join", self.server_address[1]
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread for it, which would have let go of its place
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_TIMEOUT_SECONDS)
        with contextlib.ExitStack() as ending:
            # Who sends a byte now and then would hold one of the few connections for hours. TLS takes the socket over.
            own = ending.enter_context(request.dup())
            timer = threading.Timer(_CONNECTION_SECONDS, _shut_down, (own,))
            timer.daemon = True
            timer.start()
            ending.callback(timer.cancel)
            # The handshake happens here, in the connection's own thread, so that a silent client holds up nobody else.
            secured = ending.enter_context(self._tls.wrap_socket(request, server_side=True))
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("join: connection from %s failed", client_address, exc_info=True)


def _shut_down(connection: socket.socket) -> None:
    """Whoever reads from it or writes to it is told that it has ended."""
    with contextlib.suppress(OSError):  # it has
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    server_version = "edgeswarm"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == AUTHORITY_PATH:
            self._answer(200, self.server.joins.authority.certificate_pem, "application/x-pem-file")
        else:
            self._refuse(404, "There is nothing at this path.")

    def do_POST(self) -> None:
        if self.path != JOIN_PATH:
            self._refuse(404, "There is nothing at this path.")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self._refuse(411, "The request has no Content-Length.")
            return
        if not 0 <= length <= _BODY_LIMIT_BYTES:
            self._refuse(413, f"The request is longer than {_BODY_LIMIT_BYTES} bytes.")
            return
        try:
            request = json.loads(self.rfile.read(length))
            if not isinstance(request, dict):
                raise ValueError("it isn't a JSON object")
            node_id, certificate = self._admitted(request)
        except ValueError as error:
            self._refuse(400, f"The join request is malformed: {error}.")
        except EdgeswarmError as error:
            _log.warning("join: refused %s: %s", self.client_address[0], error.message)
            self._answer(_STATUS.get(error.code, 500), json.dumps(error.to_json()).encode())
        else:
            self._answer(200, json.dumps({"certificate": certificate.decode()}).encode())
            if self.server.joins.on_joined is not None:
                self.server.joins.on_joined(node_id, plain_address(self.client_address[0]))

    def _admitted(self, request: dict[str, Any]) -> tuple[str, bytes]:
        try:
            return self.server.joins.admit(request)
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The cluster's machine can't write down who joined ({error.strerror or error}).",
                "Free space there, or let the user of `edgeswarm token create` write to the cluster's folder.",
            ) from error

    def _refuse(self, status: int, message: str) -> None:
        error = EdgeswarmError(ErrorCode.TRUST, message, "Use the same version of edgeswarm on both machines.")
        self._answer(status, json.dumps(error.to_json()).encode())

    def _answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("join: %s " + format, self.client_address[0], *args)
