"""One end of the tensor path, as a process of its own: takes orders as JSON lines, answers with what it cost.

    python -m bench.tensor_end {send|receive} IDENTITY_FOLDER ACK_FD

    {"way": "edgeswarm", "frame_bytes": 1048576, "frames": 512, "chunk_bytes": 262144, "number": 3, "port": 0}
    {"port": 40123}                                     the receiver, when the other end may connect
    {"seconds": 0.91, "cpu_seconds": 0.44}              each end, when all frames have arrived

Ways: `edgeswarm` is what a worker does (EgressScheduler, OutboundLinks, TensorServer, Mailbox); `samples` the way of samples
from the data service, an answer as large as a frame; `grpc` a stream of gRPC with mTLS, but the messages are there already
and are thrown away; `tcp` plain sockets, from tensors into tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import torch

from bench.measuring import cpu_seconds
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import ByteStream, StreamListener, open_stream
from edgeswarm.wire.channel import (
    raw_service,
    raw_stream_unary,
    raw_stream_unary_handler,
    secure_channel,
    secure_server,
)
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.sample_stream import answer_requests, ask_for_samples
from edgeswarm.wire.tensor_frames import OutgoingFrame, bytes_of
from edgeswarm.wire.v1 import data_pb2
from edgeswarm_agent.worker.egress import EgressScheduler
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.links import OutboundLinks
from edgeswarm_agent.worker.mailbox import Mailbox
from edgeswarm_agent.worker.tensor_server import InboundEpoch, TensorServer

SENDER, RECEIVER = "sender-000001", "receiver-000002"
LOOPBACK = "127.0.0.1"
SERVICE, METHOD = "edgeswarm.bench.v1.Bytes", "Send"
# What may be under way unacknowledged, as in training: nobody has more than a few micro-batches in flight.
WINDOW_BYTES = 32 << 20
ACK_BYTES = 8 << 20


@dataclass(frozen=True)
class Order:
    """One measurement. number: counts up, the epoch of the streams. port: of the receiver."""

    way: str
    frame_bytes: int
    frames: int
    chunk_bytes: int
    number: int
    port: int

    @property
    def acknowledged_frames(self) -> int:
        """An acknowledgement stands for so many frames."""
        return max(1, min(ACK_BYTES // self.frame_bytes, self.frames))

    @property
    def window(self) -> int:
        """Acknowledgements that may be missing."""
        return max(2, WINDOW_BYTES // (self.acknowledged_frames * self.frame_bytes))

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def tensors(self) -> list[torch.Tensor]:
        """What is sent, again and again."""
        count = max(2, (16 << 20) // self.frame_bytes)
        return [torch.randn(self.frame_bytes // 4) for _ in range(count)]


class Sender:
    """acks: pipe on which the receiver says that it has taken frames."""

    def __init__(self, identity: Identity, acks: int) -> None:
        self._identity = identity
        self._acks = acks

    def run(self, order: Order) -> None:
        ways: dict[str, Callable[[Order], None]] = {
            "edgeswarm": self._edgeswarm,
            "samples": self._samples,
            "grpc": self._grpc,
            "tcp": self._tcp,
        }
        ways[order.way](order)

    def _edgeswarm(self, order: Order) -> None:
        switch = EpochSwitch()
        egress = EgressScheduler(switch)
        links = OutboundLinks(self._identity, job_id="bench", epoch=order.number, egress=egress, switch=switch)
        links.open({RECEIVER: order.address}, timeout_seconds=10)
        tensors = order.tensors()

        def send(index: int) -> None:
            key = FrameKey(FrameKind.FORWARD, 0, index, 0, 0, 1)
            frame = OutgoingFrame(key, tensors[index % len(tensors)], epoch=order.number, chunk_bytes=order.chunk_bytes)
            egress.send(RECEIVER, frame)

        with Clocks():
            self._paced(order, send)
        switch.halt()
        links.close()

    def _samples(self, order: Order) -> None:
        samples = bytes(order.frame_bytes)
        stream = open_stream(order.address, identity=self._identity, node_id=RECEIVER)
        with Clocks():
            answer_requests(stream, lambda _: samples, doing="serving samples")
        stream.close()

    def _grpc(self, order: Order) -> None:
        channel = secure_channel(order.address, identity=self._identity, node_id=RECEIVER)
        messages = [bytes(bytes_of(tensor)[: order.chunk_bytes]) for tensor in order.tensors()]
        count = -(-order.frame_bytes * order.frames // len(messages[0]))

        def stream() -> Iterator[bytes]:
            for index in range(count):
                yield messages[index % len(messages)]

        raw_stream_unary(channel, SERVICE, METHOD)(iter([messages[0]]), timeout=60)  # the handshake
        with Clocks():
            raw_stream_unary(channel, SERVICE, METHOD)(stream(), timeout=60)
        channel.close()

    def _tcp(self, order: Order) -> None:
        views = [bytes_of(tensor) for tensor in order.tensors()]
        with socket.create_connection((LOOPBACK, order.port)) as connection, Clocks():
            self._paced(order, lambda index: connection.sendall(views[index % len(views)]))

    def _paced(self, order: Order, send: Callable[[int], None]) -> None:
        waiting = 0
        for index in range(order.frames):
            send(index)
            if (index + 1) % order.acknowledged_frames == 0 or index + 1 == order.frames:
                waiting += 1
                if waiting >= order.window:
                    waiting -= len(os.read(self._acks, 1))
        while waiting:
            waiting -= len(os.read(self._acks, 1))


class Receiver:
    """acks: pipe to tell the sender."""

    def __init__(self, identity: Identity, acks: int) -> None:
        self._acks = acks
        self._server = TensorServer(identity, address=f"{LOOPBACK}:0")
        self._bare_done = threading.Semaphore(0)
        handler = raw_stream_unary_handler(self._take_bare)
        self._bare_server, self._bare_port = secure_server(
            identity, address=f"{LOOPBACK}:0", workers=2, handlers=[raw_service(SERVICE, {METHOD: handler})]
        )
        self._bare_server.start()
        self._streams: queue.SimpleQueue[tuple[ByteStream, threading.Event]] = queue.SimpleQueue()
        self._listener = StreamListener(identity, behind=f"{LOOPBACK}:0", taken=self._hand_over)

    def run(self, order: Order) -> None:
        ways: dict[str, Callable[[Order], None]] = {
            "edgeswarm": self._edgeswarm,
            "samples": self._samples,
            "grpc": self._grpc,
            "tcp": self._tcp,
        }
        ways[order.way](order)

    def _edgeswarm(self, order: Order) -> None:
        switch = EpochSwitch()
        mailbox = Mailbox(switch, epoch=order.number)
        self._server.open_epoch(InboundEpoch("bench", order.number, {SENDER}, mailbox, switch))
        answer(port=self._server.port)
        key = FrameKey(FrameKind.FORWARD, 0, 0, 0, 0, 1)
        with Clocks():
            for index in range(order.frames):
                mailbox.take((SENDER, key._replace(micro_batch=index)))
                self._acknowledge(order, index)
        switch.halt()

    def _samples(self, order: Order) -> None:
        answer(port=self._listener.port)
        stream, is_done = self._streams.get()
        request = data_pb2.FetchSamplesRequest(indices=range(256))
        with Clocks():
            for _ in range(order.frames):
                ask_for_samples(stream, request)
        is_done.set()

    def _hand_over(self, stream: ByteStream) -> None:
        is_done = threading.Event()
        self._streams.put((stream, is_done))
        is_done.wait()

    def _grpc(self, order: Order) -> None:
        answer(port=self._bare_port)
        self._bare_done.acquire()  # the handshake
        with Clocks():
            self._bare_done.acquire()

    def _take_bare(self, messages: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        for _message in messages:
            pass
        self._bare_done.release()
        return b""

    def _tcp(self, order: Order) -> None:
        with socket.create_server((LOOPBACK, 0)) as server:
            answer(port=server.getsockname()[1])
            connection, _ = server.accept()
            with connection, Clocks():
                for index in range(order.frames):
                    view = bytes_of(torch.empty(order.frame_bytes, dtype=torch.uint8))
                    filled = 0
                    while filled < order.frame_bytes:
                        filled += connection.recv_into(view[filled:])
                    self._acknowledge(order, index)

    def _acknowledge(self, order: Order, index: int) -> None:
        if (index + 1) % order.acknowledged_frames == 0 or index + 1 == order.frames:
            os.write(self._acks, b".")


class Clocks:
    """Around what is measured; says what it took."""

    def __enter__(self) -> Clocks:
        self._started, self._cpu = time.perf_counter(), cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        answer(seconds=time.perf_counter() - self._started, cpu_seconds=cpu_seconds() - self._cpu)


def answer(**content: Any) -> None:
    print(json.dumps(content), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("end", choices=("send", "receive"))
    parser.add_argument("identity", type=Path)
    parser.add_argument("acks", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    identity = Identity.load(given.identity, role=Role.AGENT)
    end = (Sender if given.end == "send" else Receiver)(identity, given.acks)
    for line in sys.stdin:
        end.run(Order(**json.loads(line)))


if __name__ == "__main__":
    main()
