"""The all-reduce of a stage's group, as its workers do it: bucket after bucket, each once the last replica has it, two at once.

    replica a   F B B B B B B|         bucket 0 ------> bucket 1 ------> a few numbers --> step
    replica b   F B B B B B B B B B|   |                |
                 '- statistics ->  ^ bucket 0 done at both, and b's last backward goes on

Each chunk goes to its owner and comes back as a sum (edgeswarm/chunk_owners.py), in two steps: first all owners wait for all
their chunks, then everybody for all sums. A step is one transfer out of each replica's card and one into it, of all its frames'
bytes. Two buckets that are under way at once share the cards in the first step, and then in the second, so that cards which could
carry both ways are busy one way for much of the time:

    into an owner    | chunks of 0 and 1 |                     | chunks of 2 |
    out of it                            |   sums of 0 and 1   |             | sums of 2 |

Two replicas exchange the bucket, in one step. Many buckets that are taken for one buffer do both steps at once here, for some are
in the first and some in the second; such a buffer ends no earlier than its steps one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeswarm.chunk_owners import OwnersInTurn, Traffic, exchange_steps, traffic
from edgeswarm.profile import Overheads

from .event_queue import EventQueue
from .network import Network, Stream, Transfer
from .stage_work import Bucket

# As the worker has it.
REDUCED_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the group: the flows out of its card and into it, and its overheads."""

    outward: Stream
    inward: Stream
    overheads: Overheads


@dataclass(frozen=True, slots=True)
class _Buffer:
    """One buffer, or several of the worker's: count. size: bytes of one. owners: places of members. shares: what each member does
    with it. steps: one after another, what each member sends and takes in it, in parts of the buffer.
    """

    size: float
    count: int
    owners: tuple[int, ...]
    shares: tuple[Traffic, ...]
    steps: tuple[tuple[tuple[float, float], ...], ...]


class GroupAllReduce:
    """The buckets of one stage's group, round after round, and what goes with them.

    The sums of batch norms come first, once the last forward is done (none where statistics_bytes is 0); last come a few numbers.

    members: the replicas, the owners of chunks first, so many as `owners` says. handled(position, seconds): when a replica's
    processor will be done with so much. finished(position): called for each replica when the round's last buffer is there.
    """

    def __init__(
        self,
        queue: EventQueue,
        network: Network,
        *,
        stage: int,
        buckets: Sequence[Bucket],
        statistics_bytes: int,
        members: Sequence[Member],
        owners: int,
        handled: Callable[[int, float], float],
        finished: Callable[[int], None],
    ) -> None:
        self._queue = queue
        self._network = network
        self._stage = stage
        self._members = tuple(members)
        self._owners_in_turn = OwnersInTurn(range(owners))
        self._handled = handled
        self._finished = finished
        self._steps = exchange_steps(len(members))
        self._latency = max(member.outward.latency for member in members)
        statistics = float(statistics_bytes)
        self._buffers = [self._buffer(statistics, held_bytes=statistics)] if statistics_bytes else []
        self.first_bucket = len(self._buffers)
        self._buffers += [
            self._buffer(bucket.gradient_bytes, held_bytes=bucket.held_bytes, count=bucket.count) for bucket in buckets
        ]
        self._buffers.append(self._buffer(0.0, held_bytes=0.0))
        self._handed_in = [0] * len(self._buffers)
        self._begun = 0
        self._done = 0
        self._missing = [0] * len(self._buffers)  # transfers under way, of those that have begun

    def _buffer(self, size: float, *, held_bytes: float, count: int = 1) -> _Buffer:
        """Of so many bytes altogether; made in the worker's order. Those it stands for, if several, are large: of all owners.

        size: as they travel.
        """
        members = len(self._members)
        places = self._owners_in_turn.of_next(held_bytes / count)
        owners = len(places)
        shares = tuple(traffic(members, owners, is_owner=place in places) for place in range(members))
        if members == 2 or count > 1 or not size:
            steps: tuple[tuple[tuple[float, float], ...], ...] = (tuple((share.sent, share.sent) for share in shares),)
        else:
            of_chunks, of_sums = (owners - 1) / owners, (members - 1) / owners
            to_owners = tuple((of_chunks, of_sums) if place in places else (1.0, 0.0) for place in range(members))
            steps = (to_owners, tuple((taken, sent) for sent, taken in to_owners))
        return _Buffer(size / count, count, places, shares, steps)

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
        size = len(self._members)
        while (
            self._begun < len(self._buffers)
            and self._begun - self._done < REDUCED_AT_ONCE
            and self._handed_in[self._begun] == size
        ):
            number = self._begun
            self._begun += 1
            buffer = self._buffers[number]
            handled = 0.0
            for position, (member, share) in enumerate(zip(self._members, buffer.shares, strict=True)):
                sent = buffer.size * share.sent
                each = (
                    share.frames + share.waits
                ) * member.overheads.frame_seconds + 2 * sent * member.overheads.byte_seconds
                handled = max(handled, self._handled(position, buffer.count * each))
            if len(buffer.steps) == 1:
                # Of several buckets in one buffer two are under way at a time.
                in_turn = self._queue.now + self._in_turn(buffer) * max(1.0, buffer.count / REDUCED_AT_ONCE)
                handled = max(handled, in_turn)
            self._take_step((number, 0, handled))

    def _take_step(self, begun: tuple[int, int, float]) -> None:
        """begun: which buffer, its step, and when the processors will be done with all of it."""
        number, step, handled = begun
        buffer = self._buffers[number]
        flows = [
            (stream, buffer.size * part)
            for member, parts in zip(self._members, buffer.steps[step], strict=True)
            for stream, part in zip((member.outward, member.inward), parts, strict=True)
            if part
        ]
        self._missing[number] = len(flows)
        is_whole = len(buffer.steps) == 1
        for stream, size in flows:
            behind = self._latencies(stream, size, buffer.count) if is_whole else 0.0
            arrival = (number, step, behind, handled)
            label = ("all-reduce", self._stage, number)
            transfer = Transfer(size * buffer.count, self._arrived, arrival, urgent=False, label=label)
            self._network.send(stream, transfer)

    def _in_turn(self, buffer: _Buffer) -> float:
        """Seconds of one buffer alone: to the owners, and from them. A frame's handling at both ends is in the latency.

        An owner gets a chunk of each of the others, or sends them one; who isn't one sends a chunk to each owner, or gets one.
        What is added at an owner takes it the handling of a frame.
        """
        size, owners = len(self._members), len(buffer.owners)
        step = 0.0
        for position, member in enumerate(self._members):
            is_owner = position in buffer.owners
            chunks = 1.0 if size == 2 else (size - 1) / owners if is_owner else 1.0
            bandwidth = min(member.outward.bandwidth, member.inward.bandwidth)
            adding = member.overheads.frame_seconds if is_owner or size == 2 else 0.0
            step = max(step, buffer.size * chunks / bandwidth + self._latency + adding)
        return self._steps * step

    def _latencies(self, stream: Stream, sent: float, count: int) -> float:
        """Seconds that a buffer's last step ends after its bytes have gone, the first step's latency apart.

        Of several buckets in one buffer two are under way at a time: latencies show where they are longer than the bytes.
        """
        latencies = self._steps * self._latency
        return latencies - stream.latency + (count - 1) * max(0.0, (latencies - sent / stream.bandwidth) / 2)

    def _arrived(self, arrival: tuple[int, int, float, float]) -> None:
        number, step, extra_seconds, handled = arrival
        self._missing[number] -= 1
        if self._missing[number]:
            return
        buffer = self._buffers[number]
        if step + 1 < len(buffer.steps):
            adding = max(self._members[place].overheads.frame_seconds for place in buffer.owners)
            self._queue.at(self._queue.now + adding, self._take_step, (number, step + 1, handled))
        else:
            self._queue.at(max(self._queue.now + extra_seconds, handled), self._over, None)

    def _over(self, _: None) -> None:
        self._done += 1
        if self._done == len(self._buffers):
            self._begun = self._done = 0
            self._handed_in = [0] * len(self._buffers)
            for position in range(len(self._members)):
                self._finished(position)
        else:
            self._begin()
