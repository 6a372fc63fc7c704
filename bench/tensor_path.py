"""What the tensor path and that of samples cost: CPU seconds per GB of both ends, with mTLS, beside bare gRPC and raw TCP.

    python -m bench.tensor_path                                  frames of 64 KiB, 1 MiB and 16 MiB
    python -m bench.tensor_path --chunk-kib 128 --chunk-kib 1024     other sizes of a message
    python -m bench.tensor_path --mbps 100 --megabytes 24            as root: packets of 1500 bytes, at that rate

Two processes on loopback, in a worker's environment; at a rate, on a loopback of their own, in a network namespace. The ways
are measured by turns in one run, since a busy machine changes them all. One GB is 10^9 bytes of tensors; CPU seconds are user
and system time of both processes, all threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.measuring import Report, Spread, arguments, one_thread, ratios, say
from bench.tensor_end import RECEIVER, SENDER
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.wire.frames import CHUNK_BYTES
from edgeswarm_agent.supervisor import WORKER_ENVIRONMENT

WAYS = ("edgeswarm", "samples", "grpc", "tcp")
SHOWN = {
    "edgeswarm": "edgeswarm, mTLS",
    "samples": "edgeswarm's samples, mTLS",
    "grpc": "bare gRPC, mTLS",
    "tcp": "raw TCP",
}
FRAME_KIB = (64, 1024, 16 * 1024)
GB = 1e9
SLOW_NAMESPACE = "edgeswarm-path"


@dataclass(frozen=True)
class Cost:
    """Of one run: both ends' CPU, and how fast it went."""

    send_cpu_per_gb: float
    receive_cpu_per_gb: float
    gb_per_second: float

    @property
    def cpu_per_gb(self) -> float:
        return self.send_cpu_per_gb + self.receive_cpu_per_gb


class _End:
    """A process that sends or receives."""

    def __init__(self, end: str, identity: Path, acks: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.tensor_end", end, str(identity), str(acks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=one_thread({**os.environ, **WORKER_ENVIRONMENT}),
            cwd=Path(__file__).parents[1],
            pass_fds=(acks,),
            text=True,
        )

    def order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an end of the measurement died with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Ends:
    """Both processes, with identities of a throw-away cluster."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority.create(folder / "authority")
        for name in (SENDER, RECEIVER):
            authority.issue(node_id=name, role=Role.AGENT).save(folder / name)
        acks_read, acks_write = os.pipe()
        self._sender = _End("send", folder / SENDER, acks_read)
        self._receiver = _End("receive", folder / RECEIVER, acks_write)
        os.close(acks_read)
        os.close(acks_write)
        self._number = 0

    def run(self, way: str, *, frame_bytes: int, chunk_bytes: int, total_bytes: int) -> Cost:
        self._number += 1
        frames = max(2, total_bytes // frame_bytes)
        order = {
            "way": way,
            "frame_bytes": frame_bytes,
            "frames": frames,
            "chunk_bytes": chunk_bytes,
            "number": self._number,
            "port": 0,
        }
        self._receiver.order(order)
        self._sender.order({**order, "port": self._receiver.answer()["port"]})
        sent, received = self._sender.answer(), self._receiver.answer()
        size = frames * frame_bytes / GB
        return Cost(sent["cpu_seconds"] / size, received["cpu_seconds"] / size, size / sent["seconds"])

    def __enter__(self) -> Ends:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.stop()
        self._receiver.stop()


def on_a_slow_loopback(mbps: float, command: list[str]) -> int:
    """Runs it in a network namespace whose loopback has packets as an Ethernet's and that rate; its exit code."""
    inside = ["ip", "netns", "exec", SLOW_NAMESPACE]
    burst = max(15_000, int(mbps * 1e6 / 8 * 1e-3))
    if Path("/var/run/netns", SLOW_NAMESPACE).exists():  # of a run that was killed
        subprocess.run(["ip", "netns", "del", SLOW_NAMESPACE], check=True)
    subprocess.run(["ip", "netns", "add", SLOW_NAMESPACE], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
        shape = ["root", "tbf", "rate", f"{mbps}mbit", "burst", str(burst), "latency", "50ms"]
        subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", *shape], check=True)
        return subprocess.run([*inside, *command], check=False).returncode
    finally:
        subprocess.run(["ip", "netns", "del", SLOW_NAMESPACE], check=True)


def measure(ends: Ends, report: Report, *, frame_kib: int, chunk_kib: int, repeats: int, total_bytes: int) -> None:
    """All ways by turns for one size of frames and of messages."""
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for repeat in range(repeats + 1):
        for way in WAYS:
            cost = ends.run(way, frame_bytes=frame_kib << 10, chunk_bytes=chunk_kib << 10, total_bytes=total_bytes)
            if repeat:  # the first one is warm-up
                costs[way].append(cost)
    for way, found in costs.items():
        cpu = Spread.of([cost.cpu_per_gb for cost in found])
        times = Spread.of(ratios([c.cpu_per_gb for c in found], [c.cpu_per_gb for c in costs["tcp"]]))
        over_grpc = Spread.of(ratios([c.cpu_per_gb for c in found], [c.cpu_per_gb for c in costs["grpc"]]))
        speed = Spread.of([cost.gb_per_second for cost in found])
        sending = Spread.of([cost.send_cpu_per_gb for cost in found])
        report.rows.append(
            (
                f"{frame_kib} KiB in {chunk_kib} KiB" if way != "tcp" else f"{frame_kib} KiB",
                SHOWN[way],
                cpu.shown(),
                f"{sending.median:.2f} + {cpu.median - sending.median:.2f}",
                f"{times.median:.1f}",
                f"{over_grpc.median:.1f}",
                speed.shown(),
            )
        )
        report.data.setdefault(f"{frame_kib}/{chunk_kib}", {})[way] = {
            "cpu_seconds_per_gb": cpu.to_json(),
            "sender_cpu_seconds_per_gb": sending.to_json(),
            "times_raw_tcp": times.to_json(),
            "times_bare_grpc": over_grpc.to_json(),
            "gb_per_second": speed.to_json(),
        }
        say(f"frames of {frame_kib} KiB in messages of {chunk_kib} KiB, {SHOWN[way]}: {cpu.shown()} CPU s/GB")


def main() -> int:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--frame-kib", type=int, action="append", metavar="KIB", help="only this size of frames")
    parser.add_argument(
        "--chunk-kib", type=int, action="append", metavar="KIB", help="size of a message; edgeswarm's own"
    )
    parser.add_argument("--megabytes", type=int, default=512, metavar="MB", help="of each run  [default: 512]")
    parser.add_argument("--mbps", type=float, metavar="RATE", help="on a slow loopback; needs root")
    given = parser.parse_args()
    if given.mbps:
        place = sys.argv.index("--mbps")
        rest = [*sys.argv[1:place], *sys.argv[place + 2 :]]
        return on_a_slow_loopback(given.mbps, [sys.executable, "-m", "bench.tensor_path", *rest])
    report = Report(
        title="The tensor path on loopback",
        how=(
            f"CPU seconds of both ends per GB of tensors, medians of {given.repeats} runs of {given.megabytes} MB, the ways "
            "by turns (least to most); each run after the handshake. Sender + receiver: how it divides. Times raw TCP, "
            "times bare gRPC: medians of the ratios of runs beside each other."
        ),
        columns=("frames", "way", "CPU s/GB", "sender + receiver", "times raw TCP", "times bare gRPC", "GB/s"),
    )
    with tempfile.TemporaryDirectory(prefix="edgeswarm-bench-") as folder, Ends(Path(folder)) as ends:
        for frame_kib in given.frame_kib or FRAME_KIB:
            for chunk_kib in given.chunk_kib or [CHUNK_BYTES >> 10]:
                measure(
                    ends,
                    report,
                    frame_kib=frame_kib,
                    chunk_kib=chunk_kib,
                    repeats=given.repeats,
                    total_bytes=given.megabytes * 10**6,
                )
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
