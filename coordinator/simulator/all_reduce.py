"""The all-reduce of a stage's group, as its workers do it: bucket after bucket, each once the last replica has it.

    replica a   B B B B B B|           bucket 0 ------> bucket 1 ------> statistics --> step
    replica b   B B B B B B B B B|     |                |
                      ^ bucket 0 done at both, and b's last backward goes on

A ring sends each replica's share, 2 (G-1)/G of the bucket, to its successor in 2 (G-1) transfers one after another; here
that is one transfer of as many bytes, and the latencies of all are added behind it. Two replicas exchange the bucket once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .event_queue import EventQueue
from .network import Network, Stream, Transfer
from .stage_work import Bucket


class GroupAllReduce:
    """The buckets of one stage's group, round after round; the small buffer of statistics goes last.

    ring: the stream from each replica to its successor. charge(position, frames, bytes): what a replica's processor
    spends on it. finished(position): called for each replica when the round's last buffer is there.
    """

    def __init__(
        self,
        queue: EventQueue,
        network: Network,
        *,
        stage: int,
        buckets: Sequence[Bucket],
        ring: Sequence[Stream],
        charge: Callable[[int, int, float], None],
        finished: Callable[[int], None],
    ) -> None:
        self._queue = queue
        self._network = network
        self._stage = stage
        self._ring = tuple(ring)
        self._charge = charge
        self._finished = finished
        size = len(self._ring)
        self._steps = 1 if size == 2 else 2 * (size - 1)
        # Bytes that each replica sends for a buffer, and how many buffers; the last are the statistics, a few numbers.
        part = 2 * (size - 1) / size
        self._buffers = [(bucket.gradient_bytes * part, bucket.count) for bucket in buckets] + [(0.0, 1)]
        self._handed_in = [0] * len(self._buffers)
        self._next = 0
        self._under_way = 0

    @property
    def buffers(self) -> int:
        """How many each replica hands in a round, the statistics included."""
        return len(self._buffers)

    def hand_in(self, buffer: int) -> None:
        """One replica has this buffer of the round ready; they come in order."""
        self._handed_in[buffer] += 1
        self._begin()

    def _begin(self) -> None:
        size = len(self._ring)
        if self._under_way or self._next == len(self._buffers) or self._handed_in[self._next] < size:
            return
        buffer = self._next
        self._under_way = size
        sent, count = self._buffers[buffer]
        latencies = self._steps * count
        for position, stream in enumerate(self._ring):
            self._charge(position, 2 * latencies, 2 * sent)
            label = ("all-reduce", self._stage, buffer)
            extra = (latencies - 1) * stream.latency
            self._network.send(stream, Transfer(sent, self._arrived, extra, urgent=False, label=label))

    def _arrived(self, extra_seconds: float) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._under_way = 1  # until the latencies of the other steps are over
            self._queue.at(self._queue.now + extra_seconds, self._over, None)

    def _over(self, _: None) -> None:
        self._under_way = 0
        self._next += 1
        if self._next == len(self._buffers):
            self._next = 0
            self._handed_in = [0] * len(self._buffers)
            for position in range(len(self._ring)):
                self._finished(position)
        else:
            self._begin()
