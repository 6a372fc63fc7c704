"""The samples that the data source sends a replica, ahead of need, as the worker's feed asks for them.

ready micro-batches   8 7 6 5 4 . . . 8 7 6        a call brings what is missing to `ahead`, once half are used up;
calls to the source             |---|              calls go on into the next round
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeswarm.feed_ahead import FEED_CALL_BYTES, most_ahead

from .event_queue import EventQueue
from .network import Network, Stream, Transfer


class SampleFeed:
    """One replica's. samples: of each of its micro-batches of a round, in the order of use; rounds follow without end.

    sample_bytes: of one, as it is sent. made_bytes: of one, as it waits for its use.
    arrived(bytes): called when a call's samples are there.
    """

    def __init__(
        self,
        queue: EventQueue,
        network: Network,
        *,
        stream: Stream,
        samples: Sequence[int],
        sample_bytes: float,
        made_bytes: int,
        arrived: Callable[[float], None],
    ) -> None:
        self._queue = queue
        self._network = network
        self._stream = stream
        self._samples = tuple(samples)
        self._sample_bytes = sample_bytes
        self._arrived = arrived
        self._fetched = 0  # micro-batches, from the beginning
        self._taken = 0
        self._is_reading = False
        self._most_ready = most_ahead(max(self._samples) * made_bytes)
        self._most_samples = max(1, int(FEED_CALL_BYTES / sample_bytes))
        self.read_ahead()

    @property
    def has_next(self) -> bool:
        """Whether the next micro-batch's samples are there."""
        return self._taken < self._fetched

    def take(self) -> bool:
        """Takes the next micro-batch's samples; False where they are not there yet."""
        if not self.has_next:
            return False
        self._taken += 1
        self.read_ahead()
        return True

    def read_ahead(self) -> None:
        ready = self._fetched - self._taken
        if self._is_reading or (ready and ready > self._most_ready // 2):
            return
        self._is_reading = True
        room = max(1, self._most_ready - ready)
        count, samples = 0, 0
        while count < room:
            following = self._samples[(self._fetched + count) % len(self._samples)]
            if count and samples + following > self._most_samples:
                break
            count, samples = count + 1, samples + following
        size = samples * self._sample_bytes
        transfer = Transfer(size, self._here, (count, size), label=("samples", count, -1))
        # The request takes a latency to the source.
        self._queue.at(self._queue.now + self._stream.latency, self._serve, transfer)

    def _serve(self, transfer: Transfer) -> None:
        self._network.send(self._stream, transfer)

    def _here(self, brought: tuple[int, float]) -> None:
        count, size = brought
        self._is_reading = False
        self._fetched += count
        self._arrived(size)
        self.read_ahead()
