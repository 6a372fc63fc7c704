"""The one place where connections are made: mutual TLS in both directions, and nothing else.

Every client channel and every server of edgeswarm comes from here; only frames go another way (byte_stream.py). Each side
shows the certificate that its cluster's authority signed; the client names the node that it expects (`<node-id>.edgeswarm`),
whatever address it dials.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import grpc
from cryptography import x509

from ..config import host_and_port
from ..errors import EdgeswarmError, ErrorCode
from ..listening import bound_socket
from ..security.certificates import Role, certificate_holder, read_certificate
from ..security.identity import Identity
from ..security.node_id import server_name
from .call_errors import METADATA_LIMIT_BYTES, ErrorInterceptor

# What is large travels in chunks of 512 KiB; the largest message is a Prepare, with the plan and a stage's graph.
MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
# The first packet, where it is lost, is sent again after 1, 3 and 7 s; and a small device may be busy computing.
CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0

_COMMON_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_metadata_size", METADATA_LIMIT_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # 0: no limit; a quiet stream stays watched
)

RawHandler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


# --- client ---------------------------------------------------------------------------------------------------------


def secure_channel(address: str, *, identity: Identity, node_id: str) -> grpc.Channel:
    """A channel to the node `node_id` at `address` ("host:port"); it connects when it is first used.

    A server that can't show a certificate of this cluster for exactly this node id is refused by the handshake: the
    call then fails as UNAVAILABLE, which `call_errors.error_of_call` turns into an EdgeswarmError (TRUST).
    """
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.authority_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    options = (
        *_COMMON_OPTIONS,
        ("grpc.ssl_target_name_override", server_name(node_id)),
        ("grpc.default_authority", server_name(node_id)),
        ("grpc.enable_http_proxy", 0),  # an http_proxy of the environment is not for our devices
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, which ends with its channel
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.max_reconnect_backoff_ms", 2000),  # the default of 120 s would miss a device that comes back
        # Not what it sounds like: how long an attempt has for TCP's and TLS's handshakes before it is broken off.
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    )
    return grpc.secure_channel(address, credentials, options, compression=grpc.Compression.NoCompression)


def node_id_of(address: str, *, identity: Identity, timeout_seconds: float = 5.0) -> str:
    """The node id of the server at `address` ("host:port"), from its certificate, verified against our authority.

    For `--peer host:port`, where a person knows the address and not the name. Only the handshake is done.
    Raises EdgeswarmError: DEVICE_UNREACHABLE where nobody answers, TRUST where it isn't a node of our cluster.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # In TLS 1.3 the server's certificate comes before ours is asked for, so that the name can be read without our key.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is what we want to learn; the chain is verified all the same
    context.load_verify_locations(cadata=identity.authority_pem.decode())
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(host_and_port(address), timeout=timeout_seconds) as plain,
            context.wrap_socket(plain) as secured,
        ):
            der = secured.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"What answers at {address} doesn't belong to this cluster ({error.verify_message}).",
            "Join that device with `edgeswarm-agent join`; if it has joined, check both clocks.",
        ) from error
    except ssl.SSLError as error:
        raise EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"What answers at {address} is not an edgeswarm agent ({error.reason or error}).",
            "Check the address and the port (an agent's default is 7600).",
        ) from error
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"Nobody answers at {address} ({error.strerror or error}).",
            "Check the address, the network, and that `edgeswarm-agent run` runs there.",
        ) from error
    try:
        assert der is not None
        return certificate_holder(x509.load_der_x509_certificate(der))[0]
    except ValueError as error:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"What answers at {address} belongs to this cluster but is no node of it ({error}).",
            "Give the address of an agent (the default port is 7600).",
        ) from error


# --- server ---------------------------------------------------------------------------------------------------------


def secure_server(
    identity: Identity, *, address: str, workers: int, handlers: Sequence[grpc.GenericRpcHandler] = ()
) -> tuple[grpc.Server, int]:
    """(server, port): a gRPC server bound to `address` ("host:port", port 0 for any free one), not started yet.

    Only clients with a certificate of the same cluster get as far as a call. Errors that methods raise reach the caller
    as EdgeswarmError. workers: threads; an open stream holds one for its whole life, and calls beyond them wait unseen.
    Raises EdgeswarmError: PORT_IN_USE, or CONFIG where this machine doesn't have the address.
    """
    check_address_is_free(address)
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=workers, thread_name_prefix="grpc"),
        handlers=list(handlers),
        interceptors=[ErrorInterceptor()],
        options=(
            *_COMMON_OPTIONS,
            # The default of 120 s lets whoever connects and says nothing keep a file descriptor of ours for so long.
            ("grpc.server_handshake_timeout_ms", int(CONNECT_SECONDS * 1000)),
            ("grpc.so_reuseport", 0),  # with it two servers would share the port, and calls reach either
            # The default of 300 s takes the clients' keepalive for abuse and ends healthy connections.
            ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_SECONDS * 1000) // 2),
        ),
        compression=grpc.Compression.NoCompression,
    )
    credentials = grpc.ssl_server_credentials(
        [(identity.key_pem, identity.certificate_pem)],
        root_certificates=identity.authority_pem,
        require_client_auth=True,
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise _port_in_use(address) from error
    if port == 0:  # how older versions of gRPC say that they could not bind
        raise _port_in_use(address)
    return server, port


def check_address_is_free(address: str) -> None:
    """Bind and let go, since gRPC's own failure doesn't say why and prints lines of its own.

    Raises EdgeswarmError: PORT_IN_USE, or CONFIG where this machine doesn't have the address, or it is none.
    """
    try:
        host, port = host_and_port(address)
        bound_socket(host, port).close()
    except ValueError as error:  # UnicodeError among them, for what no host can be called
        raise _cannot_listen(address, str(error)) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _port_in_use(address) from error
        raise _cannot_listen(address, error.strerror or str(error)) from error


def _cannot_listen(address: str, why: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.CONFIG,
        f"Can't listen on {address}: {why}.",
        "Choose an address of this machine, and a port above 1023.",
    )


def _port_in_use(address: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.PORT_IN_USE,
        f"Another program listens on {address} already.",
        "Is an agent running there? End it, or choose another port with --port.",
    )


def peer(context: grpc.ServicerContext) -> tuple[str, Role]:
    """(node id, role) of the caller, from its certificate; raises EdgeswarmError (TRUST) where it isn't a node's."""
    # Stubs type the values as bytes; they are lists of bytes.
    properties: Mapping[str, Any] = context.auth_context()
    try:
        pem: bytes = properties["x509_pem_cert"][0]
        return read_certificate(pem)
    except (KeyError, IndexError, ValueError) as error:
        raise EdgeswarmError(
            ErrorCode.TRUST, "The caller's certificate is not one of a node.", "Join the cluster again on that device."
        ) from error


def peer_node_id(context: grpc.ServicerContext) -> str:
    """The caller's node id, from its certificate."""
    return peer(context)[0]


def require_role(context: grpc.ServicerContext, role: Role) -> str:
    """The caller's node id, if it has this role; raises EdgeswarmError (TRUST) otherwise."""
    node_id, held = peer(context)
    if held is not role:
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"{node_id} is an {held.value}, and only an {role.value} may do this.",
            f"Call it from a machine that is an {role.value}.",
        )
    return node_id


# --- methods whose messages are raw bytes -----------------------------------------------------------------------------
# gRPC leaves a message alone where it has no serializer: tensors pass without protobuf's copies.


def raw_unary_handler(function: Callable[[bytes, grpc.ServicerContext], bytes]) -> RawHandler:
    """A method that takes one byte message and answers once."""
    handler: RawHandler = grpc.unary_unary_rpc_method_handler(function)
    return handler


def raw_stream_unary_handler(function: Callable[[Iterator[bytes], grpc.ServicerContext], bytes]) -> RawHandler:
    """A method that takes a stream of byte messages and answers once."""
    handler: RawHandler = grpc.stream_unary_rpc_method_handler(function)
    return handler


def raw_unary_stream_handler(function: Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]) -> RawHandler:
    """A method that takes one byte message and answers with a stream of them."""
    handler: RawHandler = grpc.unary_stream_rpc_method_handler(function)
    return handler


def raw_service(service: str, methods: Mapping[str, RawHandler]) -> grpc.GenericRpcHandler:
    """The methods as a service ("edgeswarm.wire.v1.Tensors"), for `secure_server(handlers=...)`."""
    return grpc.method_handlers_generic_handler(service, dict(methods))


def raw_unary(channel: grpc.Channel, service: str, method: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    """The client's side of `raw_unary_handler`."""
    return channel.unary_unary(f"/{service}/{method}")


def raw_stream_unary(channel: grpc.Channel, service: str, method: str) -> grpc.StreamUnaryMultiCallable[bytes, bytes]:
    """The client's side of `raw_stream_unary_handler`."""
    return channel.stream_unary(f"/{service}/{method}")
