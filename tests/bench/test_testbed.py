"""The testbed on this machine's kernel: shares, links, faults, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.testbed import bed as beds
from bench.testbed import links
from bench.testbed.bed import EmulatedLan
from bench.testbed.environment import EmulatedDevice, Environment
from bench.testbed.groups import LOAD
from bench.testbed.groups_here import groups
from bench.testbed.links import HUB
from edgeswarm.errors import EdgeswarmError

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(beds.why_not()), reason=f"no testbed here: it {beds.why_not()}"),
]

TWO = Environment(
    "two", (EmulatedDevice("fast", 0.5, 256 * 2**20, 200.0), EmulatedDevice("slow", 0.1, 64 * 2**20, 20.0))
)
# What it has of a processor until it must stand still for longer than 2 ms: the median in three seconds, in milliseconds.
STRETCHES = """
import time
last = time.perf_counter()
end = last + 3
used = time.thread_time()
found = []
while last < end:
    now = time.perf_counter()
    if now - last > 0.002:
        found.append(time.thread_time() - used)
        used += found[-1]
    last = now
print(1000 * sorted(found)[len(found) // 2])
"""
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000))
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        connection.sendall(data[:1])
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[EmulatedLan]:
    with EmulatedLan(TWO) as made:
        yield made


def output(node: str, *command: str) -> str:
    environment = {**os.environ, **beds.runtime_environment(node)}
    return subprocess.run(
        beds.on(node, *command), env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.fixture
def echo(bed: EmulatedLan) -> Iterator[subprocess.Popen[str]]:
    """A server on `slow` that answers with a byte for what it gets."""
    command = beds.on("slow", sys.executable, "-I", "-c", ECHO, bed.addresses["slow"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            yield process
        finally:
            process.kill()


def connect(bed: EmulatedLan) -> socket.socket:
    return socket.create_connection((bed.addresses["slow"], 9000), timeout=5.0)


def test_a_device_has_its_own_name_address_and_limits(bed: EmulatedLan) -> None:
    assert output("slow", "hostname") == "slow"
    assert output("slow", "getent", "hosts", "fast").split()[0] == bed.addresses["fast"]
    quota = "from edgeswarm_agent.telemetry.hardware import cpu_quota_cores; print(cpu_quota_cores())"
    assert float(output("fast", sys.executable, "-c", quota)) == pytest.approx(0.5)
    assert socket.gethostname() != "slow"


def test_no_device_asks_this_machines_server_of_names(bed: EmulatedLan) -> None:
    """Which is out of its reach."""
    before = Path("/etc/resolv.conf").read_text()
    assert output("slow", "cat", "/etc/resolv.conf") == ""
    assert Path("/etc/resolv.conf").read_text() == before


def test_a_share_of_the_processor_is_kept(bed: EmulatedLan) -> None:
    program = (
        "import time\nbegin = time.monotonic()\nwhile time.process_time() < 0.2: pass\nprint(time.monotonic() - begin)"
    )
    assert float(output("slow", sys.executable, "-I", "-c", program)) > 0.6  # 2 s by the quota, 0.2 s without


def test_it_is_kept_from_moment_to_moment(bed: EmulatedLan) -> None:
    """A tenth of a core is 2 ms of every 20; the kernel alone would let it run for 4 ms at a stretch."""
    assert float(output("slow", sys.executable, "-I", "-c", STRETCHES)) < 3.0


def test_what_spins_is_there_for_nobody_else(bed: EmulatedLan) -> None:
    """The kernel's idle class, in a group of it: a processor with nothing but this counts as idle."""
    processors = os.sched_getaffinity(0)
    deadline = time.monotonic() + 10.0
    while len(found := spinning()) < len(processors) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (groups().spinner / "cpu.idle").read_text().strip() == "1"
    while any(os.sched_getscheduler(each) != os.SCHED_IDLE for each in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {os.sched_getscheduler(each) for each in found} == {os.SCHED_IDLE}
    assert [os.sched_getaffinity(each) for each in found] == [{each} for each in sorted(processors)]


def spinning() -> list[int]:
    """Their ids, by the processor."""
    ids = [int(line) for line in (groups().spinner / "cgroup.procs").read_text().split()]
    return sorted(ids, key=lambda each: min(os.sched_getaffinity(each)))


def test_memory_ends_where_the_limit_is(bed: EmulatedLan) -> None:
    before = beds.statistics("slow")["oom_kills"]
    command = beds.on("slow", sys.executable, "-I", "-c", "b'x' * (200 << 20)")
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode != 0
    told = beds.statistics("slow")
    assert told["oom_kills"] > before
    if told["peak_bytes"] is not None:  # Linux 5.19 and later, of version 2
        assert told["peak_bytes"] <= 64 * 2**20


def test_a_link_has_its_rate_both_ways(bed: EmulatedLan, echo: subprocess.Popen[str]) -> None:
    """4 MB at 20 Mbit/s take 1.6 s; a burst of 64 KiB goes at once."""
    with connect(bed) as connection:
        connection.settimeout(30.0)
        begin = time.monotonic()
        sent = 0
        while sent < 4_000_000:
            sent += connection.send(b"x" * 65536)
        while time.monotonic() - begin < 60 and links.describe("slow")["received_bytes"] < 4_000_000:
            time.sleep(0.01)
        assert time.monotonic() - begin > 1.4
    sent_bytes = links.sent_bytes()
    assert sent_bytes[HUB] > 4_000_000
    assert 0 < sent_bytes["slow"] <= links.describe("slow")["sent_bytes"] < 1_000_000
    assert set(sent_bytes) == {device.name for device in bed.environment.devices} | {HUB}
    links.limit("slow", 40)
    try:
        assert links.describe("slow")["mbps"] == pytest.approx(40.0)
    finally:
        links.limit("slow", 20)


def test_a_cut_is_silent_and_a_freeze_too(bed: EmulatedLan, echo: subprocess.Popen[str]) -> None:
    with connect(bed) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        connection.settimeout(0.5)
        links.forward("slow", on=False)
        try:
            connection.sendall(b"x")
            with pytest.raises(TimeoutError):
                connection.recv(1)
        finally:
            links.forward("slow", on=True)
        connection.settimeout(10.0)
        assert connection.recv(1) == b"x"
        groups().freeze("slow", frozen=True)
        try:
            connection.settimeout(0.5)
            connection.sendall(b"x")
            with pytest.raises(TimeoutError):
                connection.recv(1)
        finally:
            groups().freeze("slow", frozen=False)
        connection.settimeout(10.0)
        assert connection.recv(1) == b"x"


def test_a_kill_is_told_and_a_loss_of_power_is_not(bed: EmulatedLan, echo: subprocess.Popen[str]) -> None:
    with connect(bed) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        groups().kill_all("slow")
        assert connection.recv(1) == b""
    process = subprocess.Popen(
        beds.on("slow", sys.executable, "-I", "-c", ECHO, bed.addresses["slow"]), stdout=subprocess.PIPE, text=True
    )
    with process, connect_when_it_listens(bed, process) as connection:
        try:
            beds.power_off("slow")
            assert process.wait(10.0) != 0
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        finally:
            links.forward("slow", on=True)


def connect_when_it_listens(bed: EmulatedLan, process: subprocess.Popen[str]) -> socket.socket:
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"
    return connect(bed)


def test_what_disturbs_a_device_takes_of_its_share(bed: EmulatedLan) -> None:
    beds.disturb("fast", 50)
    assert beds.describe("fast")["disturbed"]
    (burner,) = groups().processes_of("fast", LOAD)

    def burnt_seconds() -> float:
        return int(Path(f"/proc/{burner}/schedstat").read_text().split()[0]) / 1e9

    before = burnt_seconds()
    output("fast", sys.executable, "-I", "-c", "import time\nwhile time.process_time() < 0.4: pass")
    # Half of the share by the quotas; less where other work keeps a processor of this machine from it.
    assert burnt_seconds() - before > 0.04
    beds.disturb("fast", 0)
    deadline = time.monotonic() + 5.0
    while beds.describe("fast")["disturbed"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not beds.describe("fast")["disturbed"]


def test_there_is_one_at_a_time(bed: EmulatedLan) -> None:
    with pytest.raises(EdgeswarmError, match="exists already"):
        EmulatedLan(TWO).create()


def test_what_a_killed_run_left_is_removed(bed: EmulatedLan) -> None:
    bed.__exit__(None, None, None)
    makes_one = "from tests.bench.test_testbed import *; EmulatedLan(TWO).__enter__(); print('is there', flush=True)"
    command = [sys.executable, "-c", f"{makes_one}; time.sleep(60)"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "is there\n"
        with pytest.raises(EdgeswarmError, match="exists already"):
            bed.create()
        killed.kill()
    bed.__enter__()
    assert groups().nodes() == ["fast", "hub", "slow"]


def metronomes() -> set[str]:
    """Process ids, once there is one for each processor. One that has ended and is not yet collected has no command line."""
    found: set[str] = set()
    deadline = time.monotonic() + 10.0
    while len(found) != len(os.sched_getaffinity(0)):
        assert time.monotonic() < deadline, f"{len(found)} metronomes"
        time.sleep(0.05)
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"metronome.py" in path.read_bytes():
                    found.add(path.parent.name)
    return found


def test_metronomes_end_with_their_testbed_though_another_follows_at_once(bed: EmulatedLan) -> None:
    before = metronomes()
    bed.__exit__(None, None, None)
    bed.__enter__()
    deadline = time.monotonic() + 10.0
    while before & metronomes():
        assert time.monotonic() < deadline, "those of before go on"
        time.sleep(0.05)


def test_by_hand_and_nothing_is_left(bed: EmulatedLan) -> None:
    """The last one: it removes the testbed."""
    root = Path(__file__).parents[2]

    def hand(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench.testbed", *words]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)

    assert "slow" in hand("list").stdout
    assert hand("exec", "fast", "--", "sh", "-c", "exit 7").returncode == 7
    assert "there is no device nothing" in hand("cut", "nothing").stderr
    assert hand("down").returncode == 0
    assert groups().nodes() == []
    assert not any(folder.exists() for folder in groups().folders())
    assert not groups().spinner.exists()
    assert not links.exists()
    assert not beds.RUNTIME_FOLDERS.exists()
    assert not list(links.NAMES.glob(f"{links.PREFIX}*")) if links.NAMES.exists() else True
