"""What frames cost this device's processor: a conversation with itself over the worker's own links, mTLS included.

    egress --> chunks --> TLS --> loopback --> TLS --> tensor server --> mailbox --> taken
    \\________________________________ this process's CPU seconds ________________________________/

Both ends are here, so that half of it is one end's. Many small frames and a few large ones tell a frame's cost from a byte's.
Between two frames a small network computes, sweeps the caches as a large one would, and the device idles, as in a round: what
is in no cache, on a processor that has to wake up, was seen to cost several times as much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from edgeswarm.security.identity import Identity
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame

from ..worker.egress import EgressScheduler
from ..worker.epoch_state import EpochSwitch
from ..worker.links import OutboundLinks
from ..worker.mailbox import Mailbox
from ..worker.tensor_server import InboundEpoch, TensorServer

JOB_ID = "wire cost"
SMALL_FRAMES, SMALL_BYTES = 24, 64
LARGE_FRAMES, LARGE_BYTES = 8, 1 << 20
IDLE_SECONDS = 0.01
SWEPT_BYTES = 8 << 20  # more than a core's own caches hold
_OPEN_SECONDS = 20.0


@dataclass(frozen=True)
class WireCost:
    """CPU seconds of one end for each frame, and for each byte of it."""

    frame_seconds: float
    byte_seconds: float


def measure_wire(identity: Identity, server: TensorServer, *, switch: EpochSwitch) -> WireCost:
    """Sends frames to this worker's own server. switch: ends it early; it is thrown at the end, with all streams.

    Raises EdgeswarmError where the worker can't reach its own server, and what threw the switch.
    """
    node_id = identity.node_id
    mailbox = Mailbox(switch, epoch=1)
    egress = EgressScheduler(switch)
    links = OutboundLinks(identity, job_id=JOB_ID, epoch=1, egress=egress, switch=switch)
    server.open_epoch(InboundEpoch(JOB_ID, 1, {node_id}, mailbox, switch))
    number = 0

    compute = _small_network()

    def exchange(frames: int, size: int) -> float:
        """CPU seconds of one frame, the median; each is taken before the next is sent."""
        nonlocal number
        content = torch.zeros(size, dtype=torch.uint8)
        taken = []
        for _ in range(frames):
            compute()
            time.sleep(IDLE_SECONDS)
            started = time.process_time()
            key = FrameKey(FrameKind.FORWARD, number, 0, 0, 0, 1)
            number += 1
            egress.send(node_id, OutgoingFrame(key, content, epoch=1))
            mailbox.take((node_id, key))
            taken.append(time.process_time() - started)
        return statistics.median(taken)

    try:
        links.open({node_id: server.own_address}, timeout_seconds=_OPEN_SECONDS)
        exchange(2, LARGE_BYTES)
        small = exchange(SMALL_FRAMES, SMALL_BYTES)
        large = exchange(LARGE_FRAMES, LARGE_BYTES)
    finally:
        # A neighbour of the first plan may be ready before we are: it is to try again, and not to take its job for over.
        server.forget_epoch()
        switch.halt()
        links.close()
    return WireCost(small / 2, max(0.0, large - small) / 2 / (LARGE_BYTES - SMALL_BYTES))


def _small_network() -> Callable[[], None]:
    """A forward and a backward through layers of several kinds, and as much memory touched as large ones touch."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=32),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 8 * 8, 10),
    )
    inputs = torch.rand(8, 16, 8, 8)
    swept = torch.zeros(SWEPT_BYTES, dtype=torch.uint8)

    def compute() -> None:
        network(inputs).sum().backward()
        swept.add_(1)

    return compute
