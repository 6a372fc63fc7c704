"""Connections for large amounts of bytes: mutual TLS over plain sockets, with as few wake-ups as can be.

On a slow link a large message comes in hundreds of packets. gRPC wakes up for each few of them: on a link of 100 Mbit/s it
takes 23 CPU seconds to receive a GB, a third of which is the kernel's; more than a small device has. Here the one who
reads says how many bytes it is still missing, and the kernel lets it sleep until they, or WAKE_BYTES, are there:

    packets      | | | | | | | | | | | | | | | | | |
    gRPC         ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^
    ByteStream           ^               ^         ^     SO_RCVLOWAT

Security is that of `channel.py`: each side shows a certificate of the cluster, the client names the node that it expects.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from cryptography import x509

from ..config import host_and_port, join_host_and_port
from ..errors import EdgeswarmError, ErrorCode
from ..listening import bound_socket
from ..security.certificates import certificate_holder
from ..security.files import write_atomically
from ..security.identity import Identity
from ..security.node_id import server_name
from .channel import CONNECT_SECONDS, KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS

# Decrypted in one go, well inside a core's cache; a link of 100 Mbit/s takes 10 ms for them.
WAKE_BYTES = 128 * 1024
# What the kernel holds that has not been sent yet: little, so that what is more urgent soon gets its turn.
UNSENT_BYTES = 128 * 1024
TICKET_BYTES = 16
_RECORD_HEADER_BYTES = 5
_MOST_RECORD_BYTES = _RECORD_HEADER_BYTES + 0xFFFF  # what the length in a header can say
# Between questions whether a silent other end is still there. A question or its answer may be lost on the way: with one alone,
# as gRPC asks, a link that is busy or a weak radio link would end a stream that waits for a round.
PROBE_SECONDS = 1
_TCP_NOTSENT_LOWAT = 25  # Linux; socket has no name for it before Python 3.12
# Who is still in the handshake may be anybody, and has a thread and a buffer of ours. A plan has fewer devices than this.
MOST_HANDSHAKES = 64
# After an accept that failed, for want of a file descriptor say: the next one would fail at once.
_ACCEPT_PAUSE_SECONDS = 0.1


class TooLateError(TimeoutError):
    """The time `within` which something was to be received is over; the system's own TimeoutError is a connection that broke."""


class ByteStream:
    """One end. One thread may send while another receives nothing; a stream is used in one direction at a time.

    peer: node id at the other end, from its certificate.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, expected: str | None) -> None:
        """Shakes hands. expected: the node id of the server; None for the server's own end.

        Raises OSError (ssl.SSLError among them), and ValueError where the certificate is not one of a node.
        """
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=expected is None,
            server_hostname=None if expected is None else server_name(expected),
        )
        self._buffer = memoryview(bytearray(_MOST_RECORD_BYTES))  # until it is known who is there
        self._held = 0  # bytes at the buffer's beginning, of a record that isn't whole yet
        self._wakes_at = 1
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self.within(CONNECT_SECONDS)  # the whole handshake
        _set_options(connection)
        self._shake_hands()
        connection.settimeout(None)
        self.within(None)
        held, self._buffer = self._buffer[: self._held], memoryview(bytearray(WAKE_BYTES + _MOST_RECORD_BYTES))
        self._buffer[: self._held] = held
        der = self._tls.getpeercert(binary_form=True)
        assert der is not None, "both sides' certificates are required"
        self.peer = certificate_holder(x509.load_der_x509_certificate(der))[0]

    def within(self, seconds: float | None) -> None:
        """What is received from now on has to be here in this time, all together; None: it may take for ever."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def send(self, *parts: bytes | memoryview) -> None:
        """Returns when the kernel has them all. Raises OSError when the connection has ended.

        Each part begins a record of its own: what the other end reads first, to know what comes, it has as soon as it is there.
        """
        for part in parts:
            if len(part):
                self._tls.write(part)
        self._flush()

    def receive_into(self, view: memoryview) -> None:
        """Waits until all of `view` is filled.

        Raises EOFError when the other end has closed, OSError when it broke, TooLateError at the end of the time `within` which
        it was to come.
        """
        filled, size = 0, len(view)
        while filled < size:
            if not self._tls.pending() and not self._incoming.pending:  # the exception below costs more
                self._take_in(size - filled)
            try:
                # With a buffer it is a count, which the stubs don't know.
                count = cast("int", self._tls.read(size - filled, view[filled:]))
            except ssl.SSLWantReadError:  # what came was none of the sender's data, or no whole record yet
                continue
            except ssl.SSLZeroReturnError:
                count = 0
            if count == 0:
                raise EOFError("closed")
            filled += count

    def receive_ticket(self) -> bytes:
        """What a stream begins with where the other end was given it by a call, and sends at once. Raises as `receive_into`
        does.
        """
        ticket = bytearray(TICKET_BYTES)
        self.within(CONNECT_SECONDS)
        self.receive_into(memoryview(ticket))
        self.within(None)
        return bytes(ticket)

    def wait_for_end(self) -> str:
        """Returns when the other end, which sends nothing, has closed the connection, or it broke; in words which of them."""
        try:
            self._connection.recv(1)
        except OSError as error:
            return error.strerror or str(error)
        return "closed"

    def break_off(self) -> None:
        """From any thread: whoever waits in the stream gets an error, on this side and on the other. `close` it all the same."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent; as `break_off`, and its file descriptor is free for others: nobody may be in the stream any more."""
        self.break_off()
        self._connection.close()

    def _shake_hands(self) -> None:
        while True:
            self._connection.settimeout(self._seconds_left())
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                try:
                    self._take_in(1)
                except EOFError as error:
                    raise ConnectionResetError("closed during the handshake") from error
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert that tells the other side why
                raise
            else:
                self._flush()
                return

    def _seconds_left(self) -> float | None:
        """None for ever. Raises TooLateError: what trickles in gives nobody more time."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TooLateError("it takes too long")
        return left

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._connection.sendall(self._outgoing.read())

    def _take_in(self, missing_bytes: int) -> None:
        """Waits for what so many decrypted bytes need at the least, WAKE_BYTES at most, and hands on the whole records.

        Records are handed on whole, so that it is known what of the next one is here: who waited for a byte more than the
        other side is going to send would wait for ever.
        """
        wakes_at = min(bytes_to_come(missing_bytes, self._buffer[: self._held]), WAKE_BYTES)
        if wakes_at != self._wakes_at:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)
            self._wakes_at = wakes_at
        # Not by a receive that blocks: what it finds at first it takes away, and then sleeps until as much again is there.
        left = self._seconds_left()
        if not self._poll.poll(None if left is None else 1000 * left):
            raise TooLateError("nothing comes")
        try:
            count = self._connection.recv_into(self._buffer[self._held :], 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if count == 0:
            raise EOFError("closed")
        end = self._held + count
        whole = whole_records_end(self._buffer[:end])
        self._incoming.write(self._buffer[:whole])
        self._held = end - whole
        self._buffer[: self._held] = bytes(self._buffer[whole:end])


def bytes_to_come(missing_bytes: int, held: memoryview) -> int:
    """How many bytes come at the least before so many decrypted ones can be read; 1 at least.

    held: the beginning of a record that isn't whole, or nothing. Its rest comes in any case, and nothing can be read before: who
    is missing a few bytes of a record of 16 KiB need not wake up for each packet of it.
    """
    if len(held) < _RECORD_HEADER_BYTES:
        return max(1, missing_bytes - len(held))
    record_bytes = _RECORD_HEADER_BYTES + (held[3] << 8 | held[4])
    return max(1, missing_bytes - len(held), record_bytes - len(held))


def whole_records_end(data: memoryview) -> int:
    """How many of the bytes are whole TLS records; each has its length in the last two of five bytes at its beginning."""
    end = 0
    while end + _RECORD_HEADER_BYTES <= len(data):
        size = _RECORD_HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
        if end + size > len(data):
            break
        end += size
    return end


def open_stream(address: str, *, identity: Identity, node_id: str) -> ByteStream:
    """A stream to the node `node_id`, whose listener is at `address` ("host:port").

    Raises EdgeswarmError: DEVICE_UNREACHABLE where nobody answers, TRUST where it isn't that node of our cluster.
    """
    try:
        context = _context(identity, ssl.PROTOCOL_TLS_CLIENT)
    except OSError as error:  # no fault of the other end
        raise EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"{identity.node_id} can't open a connection ({error.strerror or error}).",
            "Free memory, or let its processes open more files, on that device.",
        ) from error
    try:
        connection = socket.create_connection(host_and_port(address), timeout=CONNECT_SECONDS)
        try:
            return ByteStream(connection, context, expected=node_id)
        except BaseException:
            connection.close()
            raise
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
        raise EdgeswarmError(
            ErrorCode.TRUST,
            f"What answers at {address} is not {node_id} of this cluster ({reason}).",
            "Join that device again with `edgeswarm-agent join`; if it has joined, check both clocks.",
        ) from error
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{node_id} doesn't answer at {address} ({error.strerror or error}).",
            f"Check that {node_id} is switched on, and that no firewall between the devices holds up its ports.",
        ) from error


class StreamListener:
    """Takes streams on a port of its own, each on a thread of its own.

    taken: called with each stream, its handshake done; the stream is closed when it returns. port: where it listens: the one
    behind `behind`, which a firewall may know, or any free one where that is taken. Where MOST_HANDSHAKES are not done yet,
    who comes takes the place of the one that has been at it for the longest: an honest one is done within moments.
    """

    def __init__(
        self, identity: Identity, *, behind: str, offset: int = 1, taken: Callable[[ByteStream], None]
    ) -> None:
        """behind: "host:port" of the server that it belongs to, port 0 for any free one; offset: how far behind that port.

        Raises OSError where the host can't be bound.
        """
        self._context = _context(identity, ssl.PROTOCOL_TLS_SERVER)
        self._taken = taken
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._handshakes: dict[socket.socket, None] = {}  # in the order in which they came
        self._is_stopped = False
        host, port = host_and_port(behind)
        try:
            self._socket = _listening(host, port + offset if port else 0)
        except (OSError, OverflowError):  # taken, or beyond the last port
            self._socket = _listening(host, 0)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="accept-streams", daemon=True).start()

    def stop(self) -> None:
        """Ends all streams. Idempotent."""
        with self._lock:
            self._is_stopped = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._socket.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._is_stopped:
                    return
                time.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            with self._lock:
                if len(self._handshakes) >= MOST_HANDSHAKES:
                    oldest = next(iter(self._handshakes))
                    del self._handshakes[oldest]
                    with contextlib.suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which ends
                self._handshakes[connection] = None
                self._connections.add(connection)
                stopped = self._is_stopped
            if stopped:
                connection.close()
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), name="stream", daemon=True).start()
            except RuntimeError:  # too little memory, or too many threads, for now: who called tries again
                with self._lock:
                    self._connections.discard(connection)
                    self._handshakes.pop(connection, None)
                connection.close()
                time.sleep(_ACCEPT_PAUSE_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        try:
            # The handshake is done here, so that a silent caller holds up nobody else.
            try:
                stream = ByteStream(connection, self._context, expected=None)
            finally:
                with self._lock:
                    self._handshakes.pop(connection, None)
            try:
                self._taken(stream)
            finally:
                stream.close()
        except (OSError, ValueError, EOFError):
            pass  # no node of ours, or it has gone: it knows
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def _listening(host: str, port: int) -> socket.socket:
    listening = bound_socket(host, port)
    try:
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def _context(identity: Identity, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority_pem.decode())
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nothing is sent that nobody reads
    with _file_of(identity.key_pem + identity.certificate_pem) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _file_of(secret: bytes) -> Iterator[Path]:
    """The ssl module takes a key from a file only: one in memory, which no disk sees and for which none has to have room."""
    if not hasattr(os, "memfd_create"):  # elsewhere than on Linux: in a folder that nobody else can enter, gone at once
        with tempfile.TemporaryDirectory(prefix="edgeswarm-stream-") as folder:
            path = Path(folder) / "identity.pem"
            write_atomically(path, secret)
            yield path
        return
    with os.fdopen(os.memfd_create("edgeswarm-identity"), "wb") as file:
        file.write(secret)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _set_options(connection: socket.socket) -> None:
    """Whoever waits asks whether the other end is still there. It can't while what it sent itself is unacknowledged: who receives
    tensors sends nothing, and a request for samples that is lost is one to the machine whose heartbeats are lost, too.

    TCP_USER_TIMEOUT, which would tell the sender as well, ends a stream whose receiver doesn't read for as long, however alive:
    a step of the user's code that lets no other one run may take minutes.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": int(KEEPALIVE_SECONDS),
        "TCP_KEEPINTVL": PROBE_SECONDS,
        "TCP_KEEPCNT": int(KEEPALIVE_TIMEOUT_SECONDS) // PROBE_SECONDS,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # other systems lack some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def at_port(address: str, port: int) -> str:
    """The same host, another port."""
    return join_host_and_port(host_and_port(address)[0], port)
