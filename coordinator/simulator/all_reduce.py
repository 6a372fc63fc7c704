"""The all-reduce of a stage's group, as its workers do it: bucket after bucket, each once the last replica has it, two at once.

    replica a   F B B B B B B|         bucket 0 ------> bucket 1 ------> a few numbers --> step
    replica b   F B B B B B B B B B|   |                |
                 '- statistics ->  ^ bucket 0 done at both, and b's last backward goes on

A ring sends each replica's share, 2 (G-1)/G of the bucket, to its successor in 2 (G-1) transfers one after another; here
that is one transfer of as many bytes, and the latencies of all are added behind it, while the next bucket's bytes go. It ends no
earlier than its steps one after another, each sent and then handled: a bucket that is alone on its way leaves the link idle
while the slowest replica handles a step. Two replicas exchange the bucket once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeswarm.profile import Overheads

from .event_queue import EventQueue
from .network import Network, Stream, Transfer
from .stage_work import Bucket

# As the worker has it.
REDUCED_AT_ONCE = 2
# A step sends a frame, takes one, and adds it on a thread that wakes up for it.
HANDLINGS_OF_A_STEP = 3.0


class GroupAllReduce:
    """The buckets of one stage's group, round after round, and what goes with them.

    The sums of batch norms come first, once the last forward is done (none where statistics_bytes is 0); last come a few numbers.

    ring: the stream from each replica to its successor. overheads: of the replicas. handled(position, seconds): when a
    replica's processor will be done with so much. finished(position): called for each replica when the round's last buffer is
    there.
    """

    def __init__(
        self,
        queue: EventQueue,
        network: Network,
        *,
        stage: int,
        buckets: Sequence[Bucket],
        statistics_bytes: int,
        ring: Sequence[Stream],
        overheads: Sequence[Overheads],
        handled: Callable[[int, float], float],
        finished: Callable[[int], None],
    ) -> None:
        self._queue = queue
        self._network = network
        self._stage = stage
        self._ring = tuple(ring)
        self._overheads = tuple(overheads)
        self._handled = handled
        self._finished = finished
        size = len(self._ring)
        self._steps = 1 if size == 2 else 2 * (size - 1)
        # Bytes that each replica sends for a buffer, and how many of the worker's it stands for.
        part = 2 * (size - 1) / size
        self._buffers = [(statistics_bytes * part, 1)] if statistics_bytes else []
        self.first_bucket = len(self._buffers)
        self._buffers += [(bucket.gradient_bytes * part, bucket.count) for bucket in buckets]
        self._buffers.append((0.0, 1))
        self._handed_in = [0] * len(self._buffers)
        self._begun = 0
        self._done = 0
        self._missing = [0] * len(self._buffers)  # transfers under way, of those that have begun

    @property
    def buffers(self) -> int:
        """How many each replica hands in a round, statistics and numbers included."""
        return len(self._buffers)

    def hand_in(self, buffer: int) -> None:
        """One replica has this buffer of the round ready; they come in order."""
        self._handed_in[buffer] += 1
        self._begin()

    def _begin(self) -> None:
        """Begins the next buffers, as far as they are ready and there is a lane free."""
        size = len(self._ring)
        while (
            self._begun < len(self._buffers)
            and self._begun - self._done < REDUCED_AT_ONCE
            and self._handed_in[self._begun] == size
        ):
            buffer = self._begun
            self._begun += 1
            self._missing[buffer] = size
            sent, count = self._buffers[buffer]
            steps = self._steps * count
            handled = 0.0
            for position, overheads in enumerate(self._overheads):
                seconds = steps * HANDLINGS_OF_A_STEP * overheads.frame_seconds + 2 * sent * overheads.byte_seconds
                handled = max(handled, self._handled(position, seconds))
            # A frame's handling at both its ends is in the latency; then it is added. The bytes are handled while they come.
            adding = max(overheads.frame_seconds for overheads in self._overheads)
            step = max(sent / steps / stream.bandwidth + stream.latency for stream in self._ring) + adding
            # Of several buckets in one buffer two are under way at a time.
            in_turn = self._queue.now + self._steps * step * max(1.0, count / REDUCED_AT_ONCE)
            for stream in self._ring:
                label = ("all-reduce", self._stage, buffer)
                arrival = (buffer, self._latencies(stream, sent, count), max(handled, in_turn))
                self._network.send(stream, Transfer(sent, self._arrived, arrival, urgent=False, label=label))

    def _latencies(self, stream: Stream, sent: float, count: int) -> float:
        """Seconds that a buffer's last step ends after its bytes have gone, the first step's latency apart.

        Of several buckets in one buffer two are under way at a time: latencies show where they are longer than the bytes.
        """
        steps = self._steps * stream.latency
        return steps - stream.latency + (count - 1) * max(0.0, (steps - sent / count / stream.bandwidth) / 2)

    def _arrived(self, arrival: tuple[int, float, float]) -> None:
        buffer, extra_seconds, handled = arrival
        self._missing[buffer] -= 1
        if self._missing[buffer] == 0:
            self._queue.at(max(self._queue.now + extra_seconds, handled), self._over, None)

    def _over(self, _: None) -> None:
        self._done += 1
        if self._done == len(self._buffers):
            self._begun = self._done = 0
            self._handed_in = [0] * len(self._buffers)
            for position in range(len(self._ring)):
                self._finished(position)
        else:
            self._begin()
