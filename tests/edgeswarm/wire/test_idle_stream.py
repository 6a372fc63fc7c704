"""A stream that waits for its turn while the link loses what is sent: over a real link, which is cut for a moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

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
import sys, threading
from pathlib import Path
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import StreamListener

def take(stream):
    data = bytearray(5)
    stream.receive_into(memoryview(data))
    print(data.decode(), flush=True)

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
stream.send(b"later")
"""


def test_it_survives_what_is_lost_when_it_is_asked_whether_it_lives(tmp_path: Path) -> None:
    """The cut begins before the first question and ends before the last one.

    seconds  0 ------------ 10 -- 11 -- 12 -- 13 -- 14 -- 15: given up
    lost              |~~~~~ ? ~~~ ? ~~~ ? ~|
    """
    authority = CertificateAuthority.create(tmp_path / "authority")
    for node_id in ("here-000001", "there-000002"):
        authority.issue(node_id=node_id, role=Role.AGENT).save(tmp_path / node_id)

    def python(bed_node: str, code: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **beds.runtime_environment(bed_node), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = beds.on(bed_node, sys.executable, "-c", code, *arguments)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)

    with (
        EmulatedLan(TWO) as bed,
        python("there", RECEIVER, str(tmp_path / "there-000002")) as receiver,
    ):
        assert receiver.stdout is not None
        address = f"{bed.addresses['there']}:{int(receiver.stdout.readline())}"
        with python("here", SENDER, str(tmp_path / "here-000001"), address) as sender:
            assert sender.stdout is not None
            assert sender.stdin is not None
            assert sender.stdout.readline() == "open\n"
            time.sleep(KEEPALIVE_SECONDS - 1)
            links.forward("here", on=False)
            time.sleep(1 + KEEPALIVE_TIMEOUT_SECONDS / 2)
            links.forward("here", on=True)
            time.sleep(KEEPALIVE_TIMEOUT_SECONDS + PROBE_SECONDS)
            sender.stdin.write("\n")
            sender.stdin.flush()
            assert receiver.stdout.readline() == "later\n"
            assert sender.wait(timeout=10) == 0
        receiver.kill()
