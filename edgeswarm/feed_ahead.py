"""How far a worker's feed of samples is ahead of their use: as the worker does it, the planner counts it, the simulator takes it.

small samples    |1|2|3|4|5|6|7|8|          FEED_AHEAD micro-batches wait
larger ones      |  1  |  2  |  3  |        as many as FEED_AHEAD_BYTES hold
still larger     |        1        |        one
"""

from __future__ import annotations

FEED_AHEAD = 8  # micro-batches
FEED_AHEAD_BYTES = 64 * 1024**2
# One call to the data source fetches several micro-batches, but no more than this where samples are large.
FEED_CALL_BYTES = 8 * 1024**2
MOST_SAMPLES_A_CALL = 65_536


def most_ahead(batch_bytes: int, *, ahead: int = FEED_AHEAD, ahead_bytes: int = FEED_AHEAD_BYTES) -> int:
    """How many micro-batches of so many bytes wait for their use; below 1 where one is larger than ahead_bytes.

    One is fetched then as soon as none waits.
    """
    return min(ahead, ahead_bytes // batch_bytes) if batch_bytes else ahead


def most_held_ahead_bytes(batch_bytes: float, *, ahead: int = FEED_AHEAD) -> float:
    """What waits at most, for micro-batches of about that size: never falls as they grow, nor is it ever below them."""
    return min(ahead * batch_bytes, max(FEED_AHEAD_BYTES, batch_bytes)) if ahead else 0.0
