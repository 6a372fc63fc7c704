from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import (
    MOST_HANDSHAKES,
    TICKET_BYTES,
    WAKE_BYTES,
    ByteStream,
    StreamListener,
    TooLateError,
    bytes_to_come,
    open_stream,
    whole_records_end,
)
from tests.stream_end import ends

from ..ipv6_here import has_ipv6

SENDER, RECEIVER = "sender-000001", "receiver-000002"


class Pair:
    """A sender's end and a receiver's, over loopback."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority.create(folder / "authority")
        self.sender, self.receiver = (authority.issue(node_id=name, role=Role.AGENT) for name in (SENDER, RECEIVER))
        self._taken: queue.Queue[ByteStream] = queue.Queue()
        self._over = threading.Event()
        self.listener = StreamListener(self.receiver, behind="127.0.0.1:0", taken=self._take)
        self.address = f"127.0.0.1:{self.listener.port}"

    def _take(self, stream: ByteStream) -> None:
        self._taken.put(stream)
        self._over.wait()

    def connect(self) -> tuple[ByteStream, ByteStream]:
        """(the sender's end, the receiver's)"""
        outbound = open_stream(self.address, identity=self.sender, node_id=RECEIVER)
        return outbound, self._taken.get(timeout=10)

    def stop(self) -> None:
        self._over.set()
        self.listener.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    yield made
    made.stop()


def received(stream: ByteStream, size: int) -> bytes:
    data = bytearray(size)
    stream.receive_into(memoryview(data))
    return bytes(data)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3 * WAKE_BYTES), max_size=6), st.data())
def test_whatever_is_sent_arrives_in_whatever_pieces_it_is_asked_for(
    pair: Pair, sizes: list[int], data: st.DataObject
) -> None:
    outbound, inbound = pair.connect()
    parts = [bytes([index]) * size for index, size in enumerate(sizes)]
    sent = b"".join(parts)

    def send() -> None:
        for part in parts:
            outbound.send(part)

    done = threading.Thread(target=send)
    done.start()
    got = b""
    while len(got) < len(sent):
        got += received(inbound, data.draw(st.integers(1, len(sent) - len(got))))
    done.join()
    outbound.close()
    assert got == sent
    with pytest.raises(EOFError):
        received(inbound, 1)


def test_who_waits_for_exactly_what_comes_in_drops_gets_it(pair: Pair) -> None:
    """No byte more is to come: waiting for one more than is missing would never end."""
    outbound, inbound = pair.connect()
    size = 2 * WAKE_BYTES + 17
    got: list[bytes] = []
    receiving = threading.Thread(target=lambda: got.append(received(inbound, size)), daemon=True)
    receiving.start()
    data = bytes(range(256)) * (size // 256 + 1)
    for begin in range(0, size, 10_007):
        outbound.send(data[begin : min(begin + 10_007, size)])
        time.sleep(0.001)
    receiving.join(timeout=10)
    assert got == [data[:size]]
    outbound.close()


def test_each_end_knows_the_other_and_learns_of_its_end(pair: Pair) -> None:
    outbound, inbound = pair.connect()
    assert (outbound.peer, inbound.peer) == (RECEIVER, SENDER)
    waiting = threading.Thread(target=outbound.wait_for_end, daemon=True)
    waiting.start()
    assert waiting.is_alive()
    inbound.close()
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    outbound.close()
    outbound.close()


def test_a_node_that_is_another_one_or_of_another_cluster_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="is not another-000009") as caught:
        open_stream(pair.address, identity=pair.sender, node_id="another-000009")
    assert caught.value.code is ErrorCode.TRUST
    stranger = CertificateAuthority.create(tmp_path / "other").issue(node_id=SENDER, role=Role.AGENT)
    with pytest.raises(EdgeswarmError, match="of this cluster") as caught:
        open_stream(pair.address, identity=stranger, node_id=RECEIVER)
    assert caught.value.code is ErrorCode.TRUST
    assert pair._taken.empty()


def test_a_stranger_who_trusts_us_is_refused_by_the_listener(pair: Pair, tmp_path: Path) -> None:
    stranger = CertificateAuthority.create(tmp_path / "other").issue(node_id=SENDER, role=Role.AGENT)
    mixed = Identity(SENDER, stranger.key_pem, stranger.certificate_pem, pair.sender.authority_pem)
    # In TLS 1.3 the client is done before the server has looked at its certificate.
    outbound = open_stream(pair.address, identity=mixed, node_id=RECEIVER)
    assert ends(outbound)
    outbound.close()
    assert pair._taken.empty()


def test_a_port_that_is_taken_gives_way_to_a_free_one(pair: Pair) -> None:
    behind = f"127.0.0.1:{pair.listener.port - 1}"
    other = StreamListener(pair.receiver, behind=behind, taken=ByteStream.close)
    last = StreamListener(pair.receiver, behind="127.0.0.1:65535", taken=ByteStream.close)
    assert len({pair.listener.port, other.port, last.port}) == 3
    other.stop()
    last.stop()


def test_nobody_at_the_address_is_named(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EdgeswarmError, match=RECEIVER) as caught:
        open_stream(address, identity=pair.sender, node_id=RECEIVER)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_full_disk_holds_up_no_stream(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a connection lies in memory, where the system has files there."""
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    outbound, inbound = pair.connect()
    outbound.send(b"no folder")
    assert received(inbound, 9) == b"no folder"
    for end in (outbound, inbound):
        end.close()
    full.assert_not_called()
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(EdgeswarmError, match="No space left on device"):
        pair.connect()


def test_what_this_device_lacks_is_no_fault_of_the_other_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", lacking)
    with pytest.raises(EdgeswarmError, match=rf"^{SENDER} can't open a connection \(Too many open files\)") as caught:
        pair.connect()
    assert caught.value.code is ErrorCode.WORKER_FAILED


def test_a_thread_that_does_not_start_ends_its_own_stream_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(EdgeswarmError):
        pair.connect()
    for end in pair.connect():
        end.close()


def test_what_is_no_tls_harms_nobody(pair: Pair) -> None:
    with socket.create_connection(("127.0.0.1", pair.listener.port)) as plain:
        plain.sendall(bytes(64))
        plain.settimeout(5)
        plain.recv(1000)  # an alert, or the end
    outbound, inbound = pair.connect()
    outbound.send(b"still here")
    assert received(inbound, 10) == b"still here"
    outbound.close()


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(0, 304))
def test_whole_records_are_counted_to_the_byte(sizes: list[int], cut: int) -> None:
    records = [b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes]
    last = (b"\x17\x03\x03" + (300).to_bytes(2, "big") + bytes(300))[:cut]
    assert whole_records_end(memoryview(b"".join(records) + last)) == sum(map(len, records))


@given(st.integers(1, 400), st.integers(0, 300), st.data())
def test_nobody_waits_for_more_than_is_to_come(missing_bytes: int, size: int, data: st.DataObject) -> None:
    """Of a record with so many bytes inside some are here: what is waited for is within it, or within what is missing."""
    record = b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)
    held = record[: data.draw(st.integers(0, len(record) - 1))]
    to_come = bytes_to_come(missing_bytes, memoryview(held))
    assert 1 <= to_come <= max(len(record), missing_bytes) - len(held)


def test_a_few_bytes_of_a_record_that_trickles_in_are_one_wait(pair: Pair) -> None:
    """A relay hands on a record of 16 KiB in packets with pauses; who wants a few bytes wakes up for the first and the last."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as relay:
        address = f"127.0.0.1:{relay.getsockname()[1]}"
        threading.Thread(target=relayed, args=(relay, pair.listener.port), daemon=True).start()
        outbound = open_stream(address, identity=pair.sender, node_id=RECEIVER)
        inbound = pair._taken.get(timeout=10)
        take_in = inbound._take_in

        def counted(missing_bytes: int) -> None:
            taken.append(missing_bytes)
            take_in(missing_bytes)

        with mock.patch.object(inbound, "_take_in", counted):
            outbound.send(bytes(range(256)) * 64)
            assert received(inbound, 4) == bytes(range(4))
        assert received(inbound, 252) == bytes(range(4, 256))
        outbound.close()
    assert len(taken) <= 3


def relayed(relay: socket.socket, port: int) -> None:
    """Both ways between one caller and a port here: what the caller sends in pieces of 1 KiB, a millisecond apart."""
    caller, _ = relay.accept()
    target = socket.create_connection(("127.0.0.1", port))
    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def back() -> None:
        while data := target.recv(1 << 16):
            caller.sendall(data)

    threading.Thread(target=back, daemon=True).start()
    while data := caller.recv(1024):
        target.sendall(data)
        time.sleep(0.001)
    target.close()


def test_what_comes_on_the_heels_of_the_handshake_is_not_lost(pair: Pair) -> None:
    sent = bytes(range(256)) * 1000
    for _ in range(10):
        outbound = open_stream(pair.address, identity=pair.sender, node_id=RECEIVER)
        outbound.send(sent)
        assert received(pair._taken.get(timeout=10), len(sent)) == sent
        outbound.close()


# --- who has shown no certificate yet ---------------------------------------------------------------------------------


def is_closed(connection: socket.socket, *, seconds: float) -> bool:
    """Whether the other end has closed it, or does so within this time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_no_more_than_so_many_are_in_their_handshake_at_once(pair: Pair) -> None:
    here, there = pair.connect()  # whose handshake is done: it takes nobody's place
    with contextlib.ExitStack() as stack:
        place = ("127.0.0.1", pair.listener.port)
        silent = [stack.enter_context(socket.create_connection(place)) for _ in range(MOST_HANDSHAKES)]
        stack.enter_context(socket.create_connection(place))
        assert is_closed(silent[0], seconds=5.0), "the one that has been silent for the longest"
        assert not any(is_closed(connection, seconds=0.001) for connection in silent[1:])
        outbound, inbound = pair.connect()  # in the place of the next one
        assert is_closed(silent[1], seconds=5.0)
        outbound.send(b"here, too")
        assert received(inbound, 9) == b"here, too"
        here.send(b"still here")
        assert received(there, 10) == b"still here"
        outbound.close()
    here.close()


def test_a_handshake_that_trickles_in_has_no_more_time_than_another(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeswarm.wire.byte_stream.CONNECT_SECONDS", 0.5)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", pair.listener.port)) as slow:
        # A TLS record of 16 KiB, of which a byte comes ten times a second.
        for byte in b"\x16\x03\x01\x40\x00" + bytes(55):
            with contextlib.suppress(ConnectionError):
                slow.sendall(bytes([byte]))
            if is_closed(slow, seconds=0.1):
                break
        else:
            pytest.fail("it is still waited for")
    assert time.monotonic() - began >= 0.5


def test_a_ticket_is_waited_for_only_so_long_and_what_follows_it_for_ever(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.connect()
    monkeypatch.setattr("edgeswarm.wire.byte_stream.CONNECT_SECONDS", 0.3)
    here.send(bytes(range(TICKET_BYTES)))
    assert there.receive_ticket() == bytes(range(TICKET_BYTES))
    later = threading.Timer(0.6, here.send, (b"frame",))
    later.start()
    assert received(there, 5) == b"frame"
    with pytest.raises(TooLateError):
        there.receive_ticket()
    later.join()
    here.close()


WITHOUT_DESCRIPTORS = """
import os, resource, sys, time
from pathlib import Path
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import StreamListener

def take(stream):
    print("taken", flush=True)

listener = StreamListener(Identity.load(Path(sys.argv[1]), role=Role.AGENT), behind="127.0.0.1:0", taken=take)
lowest_free = os.dup(0)
os.close(lowest_free)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
print(listener.port, flush=True)
sys.stdin.readline()
began = time.process_time()
time.sleep(0.4)
print(time.process_time() - began, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
sys.stdin.readline()
"""


def test_a_process_without_file_descriptors_waits_until_it_has_some(pair: Pair, tmp_path: Path) -> None:
    pair.receiver.save(tmp_path / "identity")
    command = (sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path / "identity"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as listening:
        assert listening.stdin is not None
        assert listening.stdout is not None
        place = ("127.0.0.1", int(listening.stdout.readline()))
        # The one that is waited for already may have its descriptor; what comes then gets none.
        with socket.create_connection(place), socket.create_connection(place):
            listening.stdin.write("\n")
            listening.stdin.flush()
            assert float(listening.stdout.readline()) < 0.1  # CPU seconds of 0.4
        stream = open_stream(f"127.0.0.1:{place[1]}", identity=pair.sender, node_id=RECEIVER)
        assert listening.stdout.readline() == "taken\n"
        stream.close()
        listening.kill()


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback here")
def test_a_listener_on_every_address_is_reached_over_ipv6(pair: Pair) -> None:
    """As gRPC's servers are: who reached the agent's there dials the streams' at the same address."""
    taken: queue.Queue[str] = queue.Queue()
    listener = StreamListener(pair.receiver, behind="0.0.0.0:0", taken=lambda stream: taken.put(stream.peer))
    for address in (f"[::1]:{listener.port}", f"127.0.0.1:{listener.port}"):
        open_stream(address, identity=pair.sender, node_id=RECEIVER).close()
        assert taken.get(timeout=10) == SENDER
    listener.stop()
