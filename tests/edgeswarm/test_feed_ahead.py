"""How many micro-batches, and bytes of them, a feed has ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.feed_ahead import FEED_AHEAD, FEED_AHEAD_BYTES, most_ahead, most_held_ahead_bytes

MEBIBYTE = 2**20


@pytest.mark.parametrize(
    ("batch_bytes", "count", "held"),
    [
        (0, FEED_AHEAD, 0),
        (MEBIBYTE, FEED_AHEAD, 8 * MEBIBYTE),
        (20 * MEBIBYTE, 3, 64 * MEBIBYTE),
        (147 * MEBIBYTE, 0, 147 * MEBIBYTE),  # 256 images of 224 x 224 in float32
    ],
)
def test_small_and_large_micro_batches(batch_bytes: int, count: int, held: int) -> None:
    assert most_ahead(batch_bytes) == count
    assert most_held_ahead_bytes(batch_bytes) == held


@given(st.integers(0, 3 * FEED_AHEAD_BYTES), st.integers(0, FEED_AHEAD_BYTES))
def test_what_waits_is_within_what_is_counted_and_that_never_falls(batch_bytes: int, more: int) -> None:
    assert max(1, most_ahead(batch_bytes)) * batch_bytes <= most_held_ahead_bytes(batch_bytes)
    assert most_held_ahead_bytes(batch_bytes) <= most_held_ahead_bytes(batch_bytes + more)


def test_a_feed_that_has_nothing_ahead() -> None:
    assert most_held_ahead_bytes(MEBIBYTE, ahead=0) == 0
