"""The one egress scheduler of a device: which chunk leaves next, over all streams.

    compute thread      all-reduce thread          one thread per stream
    FORWARD, BACKWARD   ALL_REDUCE, TIED                 to a    to b
          |                   |                           |       |
          +----- send(peer, frame) ---> [ queues ] --- next_chunk(peer) ---> wire

Strict priority over all peers: while a stream has an activation or a gradient to send, no bucket of an all-reduce leaves
on any stream. TCP's fairness alone would let a bucket delay a gradient that somebody waits for.
"""

from __future__ import annotations

import threading
from collections import deque

from edgeswarm.wire.frames import EGRESS_CLASS, EgressClass
from edgeswarm.wire.tensor_frames import Chunk, OutgoingFrame

from .epoch_state import EpochSwitch


class _Queue:
    """What waits for one peer, by class, and whose chunk is being written now."""

    def __init__(self, lock: threading.Lock) -> None:
        self.condition = threading.Condition(lock)
        self.frames: dict[EgressClass, deque[OutgoingFrame]] = {urgency: deque() for urgency in EgressClass}
        self.writing: tuple[EgressClass, OutgoingFrame] | None = None
        self.is_closed = False

    def most_urgent(self) -> EgressClass | None:
        return next((urgency for urgency in EgressClass if self.frames[urgency]), None)

    def is_ahead_of(self, urgency: EgressClass) -> bool:
        """Whether this stream has something more urgent, waiting or being written."""
        if self.writing is not None and self.writing[0] < urgency:
            return True
        waiting = self.most_urgent()
        return waiting is not None and waiting < urgency


class EgressScheduler:
    """Queues of frames by peer. `send` never blocks; `next_chunk` is asked by the thread that feeds a stream, once it has
    written what it was given before.
    """

    def __init__(self, switch: EpochSwitch) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._switch = switch
        self.sent_bytes = 0
        self.left_out_bytes = 0  # zeros of the frames that were sent
        switch.on_thrown(self.close)

    def open(self, peer: str) -> None:
        """Makes the queue of a peer. Frames can be sent to it from now on."""
        with self._lock:
            self._queues[peer] = _Queue(self._lock)

    def send(self, peer: str, frame: OutgoingFrame) -> None:
        with self._lock:
            queue = self._queues[peer]
            queue.frames[EGRESS_CLASS[frame.key.kind]].append(frame)
            queue.condition.notify_all()

    def close(self) -> None:
        """Ends every stream after the chunk that it writes."""
        with self._lock:
            for queue in self._queues.values():
                queue.is_closed = True
            self._wake_all()

    def next_chunk(self, peer: str) -> Chunk | None:
        """Waits for the next message to this peer; None when the stream is to end."""
        queue = self._queues[peer]
        with self._lock:
            if queue.writing is not None:
                queue.writing[1].chunk_left()
                queue.writing = None
                self._wake_those_held_back(peer)
            while True:
                if queue.is_closed:
                    return None
                urgency = queue.most_urgent()
                if urgency is not None and not self._others_ahead(peer, urgency):
                    break
                queue.condition.wait()
            frame = queue.frames[urgency][0]
            queue.writing = urgency, frame
            chunk = frame.next_chunk()
            if frame.is_done:
                queue.frames[urgency].popleft()
                self.left_out_bytes += frame.left_out_bytes
            self.sent_bytes += chunk.size_bytes
            return chunk

    def _others_ahead(self, peer: str, urgency: EgressClass) -> bool:
        return any(queue.is_ahead_of(urgency) for name, queue in self._queues.items() if name != peer)

    def _wake_those_held_back(self, peer: str) -> None:
        for name, queue in self._queues.items():
            if name != peer and queue.most_urgent() is not None:
                queue.condition.notify_all()

    def _wake_all(self) -> None:
        for queue in self._queues.values():
            queue.condition.notify_all()
