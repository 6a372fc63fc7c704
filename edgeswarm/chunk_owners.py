"""Who adds up what in an all-reduce: each owner has a chunk of the buffer, gets it from all replicas, and sends them the sum.

    replicas a, b, c, d; owners a, b        step 0                  step 1
    a   | chunk 0 | chunk 1 |               1 to b                  sum of 0 to b, c, d
    b   | chunk 0 | chunk 1 |               0 to a                  sum of 1 to a, c, d
    c   | chunk 0 | chunk 1 |               0 to a, 1 to b
    d   | chunk 0 | chunk 1 |               0 to a, 1 to b

With all replicas for owners each sends 2 (G-1)/G of the buffer (Asteroid, Eq 5), as in a ring, but in two steps where a ring has
2 (G-1). With fewer, the others send it once, in fewer frames; the owners carry more. Two replicas exchange it, in one step.

A small buffer is cut into fewer chunks than there are owners, who then have one in turns: a round waits for the busiest of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Owner = TypeVar("Owner")

# A smaller chunk costs a slow device's processor less than the frame that it travels in.
LEAST_CHUNK_BYTES = 128 * 1024


class OwnersInTurn(Generic[Owner]):
    """Who has a chunk of each buffer of one round, asked for in the buffers' order. owners: of the stage, one at least."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._owners = tuple(owners)
        self._turn = 0

    def of_next(self, buffer_bytes: float) -> tuple[Owner, ...]:
        """All of them, or those whose turn it is."""
        owners, turn = self._owners, self._turn
        chunks = chunks_of_buffer(len(owners), buffer_bytes)
        if chunks == len(owners):
            return owners
        self._turn = (turn + chunks) % len(owners)
        return (owners[turn:] + owners[:turn])[:chunks]


def chunks_of_buffer(owners: int, buffer_bytes: float) -> int:
    """Into how many a buffer of so many bytes is cut where a stage has so many owners."""
    return max(1, min(owners, int(buffer_bytes // LEAST_CHUNK_BYTES)))


def exchange_steps(replicas: int) -> int:
    """Frames one after another, of one buffer."""
    return min(2, replicas - 1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one replica has to do with a buffer.

    sent: by which part of the buffer it sends, and receives as much. over_one_link: the most of it to or from one other.
    frames: that it sends and takes. waits: how often it waits for frames, and is woken up.
    """

    sent: float
    over_one_link: float
    frames: int
    waits: int


@functools.lru_cache(maxsize=4096)  # searches ask again and again
def traffic(replicas: int, owners: int, *, is_owner: bool) -> Traffic:
    """Of one replica in a group of so many, a chunk of the buffer at each of so many owners."""
    assert replicas > 1
    if replicas == 2:
        return Traffic(1.0, 1.0, 2, 1)
    if not is_owner:
        return Traffic(1.0, 1 / owners, 2 * owners, 1)
    # To another owner go his chunk and the sum of the own one.
    over_one_link = 2 / owners if owners > 1 else 1.0
    sent = (replicas + owners - 2) / owners
    return Traffic(sent, over_one_link, 2 * (replicas + owners - 2), 2 if owners > 1 else 1)
