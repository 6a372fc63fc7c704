"""A stream on which nothing comes for long: over a real link, which is cut, for a moment or for good."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from bench.testbed import bed as beds
from bench.testbed import links
from bench.testbed.bed import EmulatedLan
from bench.testbed.environment import EmulatedDevice, Environment
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.wire.byte_stream import PROBE_SECONDS
from edgeswarm.wire.channel import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS

pytestmark = [
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.skipif(bool(beds.why_not()), reason=f"no testbed here: it {beds.why_not()}"),
]

TWO = Environment("two", tuple(EmulatedDevice(name, 0.5, 256 * 2**20, 100.0) for name in ("here", "there")))
RECEIVER = """
import sys, threading, time
from pathlib import Path
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import StreamListener

def take(stream):
    time.sleep(float(sys.argv[2]))
    data = bytearray(int(sys.argv[3]))
    try:
        while True:
            stream.receive_into(memoryview(data))
            print(bytes(data[:5]).decode(), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)

listener = StreamListener(Identity.load(Path(sys.argv[1]), role=Role.AGENT), behind="0.0.0.0:0", taken=take)
print(listener.port, flush=True)
threading.Event().wait()
"""
SENDER = """
import sys
from pathlib import Path
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import open_stream

identity = Identity.load(Path(sys.argv[1]), role=Role.AGENT)
stream = open_stream(sys.argv[2], identity=identity, node_id="there-000002")
print("open", flush=True)
sys.stdin.readline()
stream.send(b"later" * (int(sys.argv[3]) // 5))
print("sent", flush=True)
sys.stdin.readline()
"""


class Ends:
    """Two devices with a stream from `here` to `there`, whose processes do as they are told."""

    def __init__(self, bed: EmulatedLan, folder: Path) -> None:
        self._bed = bed
        self._folder = folder
        authority = CertificateAuthority.create(folder / "authority")
        for node_id in ("here-000001", "there-000002"):
            authority.issue(node_id=node_id, role=Role.AGENT).save(folder / node_id)

    @contextlib.contextmanager
    def open(self, *, sent_bytes: int, idle_seconds: float = 0.0) -> Iterator[tuple[IO[str], IO[str], IO[str]]]:
        """(the sender's input, its output, the receiver's output). A line of input lets it send; what it sends the receiver takes
        as a whole, behind idle_seconds in which it doesn't read.
        """
        own = str(self._folder / "there-000002"), str(self._folder / "here-000001")
        with contextlib.ExitStack() as both:
            receiver = self._python("there", RECEIVER, own[0], str(idle_seconds), str(sent_bytes))
            both.enter_context(receiver)
            both.callback(receiver.kill)
            assert receiver.stdout is not None
            address = f"{self._bed.addresses['there']}:{int(receiver.stdout.readline())}"
            sender = both.enter_context(self._python("here", SENDER, own[1], address, str(sent_bytes)))
            both.callback(sender.kill)
            assert sender.stdout is not None
            assert sender.stdin is not None
            assert sender.stdout.readline() == "open\n"
            yield sender.stdin, sender.stdout, receiver.stdout

    def _python(self, bed_node: str, code: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **beds.runtime_environment(bed_node), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = beds.on(bed_node, sys.executable, "-c", code, *arguments)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with EmulatedLan(TWO) as bed:
        yield Ends(bed, tmp_path)


def let_go_on(sender: IO[str]) -> None:
    sender.write("\n")
    sender.flush()


def test_it_survives_what_is_lost_when_it_is_asked_whether_it_lives(ends: Ends) -> None:
    """The cut begins before the first question and ends before the last one.

    seconds  0 ------------ 10 -- 11 -- 12 -- 13 -- 14 -- 15: given up
    lost              |~~~~~ ? ~~~ ? ~~~ ? ~|
    """
    with ends.open(sent_bytes=5) as (sender, _, receiver_says):
        time.sleep(KEEPALIVE_SECONDS - 1)
        links.forward("here", on=False)
        time.sleep(1 + KEEPALIVE_TIMEOUT_SECONDS / 2)
        links.forward("here", on=True)
        time.sleep(KEEPALIVE_TIMEOUT_SECONDS + PROBE_SECONDS)
        let_go_on(sender)
        assert receiver_says.readline() == "later\n"


def test_it_survives_a_receiver_that_does_not_read_for_long(ends: Ends) -> None:
    """More is on its way than the kernels hold."""
    begin = time.monotonic()
    idle_seconds = KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS + 5
    with ends.open(sent_bytes=40_000_000, idle_seconds=idle_seconds) as (sender, sender_says, receiver_says):
        let_go_on(sender)
        assert receiver_says.readline() == "later\n"
        assert sender_says.readline() == "sent\n"
    assert time.monotonic() - begin > idle_seconds


@pytest.mark.parametrize("is_sending", [False, True])
def test_whoever_waits_notices_that_the_other_end_is_cut_off(ends: Ends, is_sending: bool) -> None:
    with ends.open(sent_bytes=40_000_000) as (sender, _, receiver_says):
        if is_sending:
            let_go_on(sender)
            time.sleep(0.5)
        links.forward("here", on=False)
        begin = time.monotonic()
        assert "Error" in receiver_says.readline()
        assert time.monotonic() - begin < KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS + 5
