"""How a stage's gradients are cut for its all-reduce: as the worker does it, and as the simulator takes it.

    parameters, last used first     | head | block 3 | block 2 | ... |
    buckets                         |   bucket 0   | bucket 1 | last |       each all-reduced as soon as it is done
    a large parameter's bucket      |  piece  |  piece  |  piece  |          one after another

Each owner of a chunk gets it from all replicas, and a frame costs the processors at both ends much the same whatever it carries
(chunk_owners.py). So the more replicas, the larger the buckets: a chunk has half a mebibyte at least. The last one is small:
it is done when the backward is, so that everybody waits for it.
"""

from __future__ import annotations

import math

LEAST_BUCKET_BYTES = 1 << 20
LAST_BUCKET_BYTES = 1 << 16
MOST_PIECES = 16  # of one bucket, since each waits for its latencies
# Pieces and chunks begin at multiples of so many numbers, so that a table's rows lie in them as in the blocks of
# edgeswarm/wire/tensor_blocks.py: what no replica met is then left out whole.
ALIGNED_NUMBERS = 128


def bucket_bytes(replicas: int) -> int:
    """The most that a bucket of several parameters has, and about what a piece of a larger one has."""
    return LEAST_BUCKET_BYTES * max(2, replicas) // 2


def begins_bucket(size: float, *, held: float, before: float, largest: float) -> bool:
    """Whether the parameter that comes next in the backward begins a new bucket, behind one that holds something.

    size: its bytes. held: of the bucket so far. before: of the parameters before it in the forward. largest: `bucket_bytes`.
    """
    is_among_the_last = before + size <= LAST_BUCKET_BYTES <= held
    return held + size > largest or is_among_the_last


def pieces_of(gradient_bytes: float, *, piece_bytes: int) -> int:
    """In how many all-reduces a bucket of so many bytes goes, each of about piece_bytes; at least one."""
    return max(1, min(MOST_PIECES, math.ceil(gradient_bytes / piece_bytes)))


def cut_places(numbers: int, parts: int) -> tuple[int, ...]:
    """Where a buffer of so many numbers is cut into parts of about one size: parts - 1 places, as `tensor_split` takes them."""
    return tuple(ALIGNED_NUMBERS * round(part * numbers / parts / ALIGNED_NUMBERS) for part in range(1, parts))
