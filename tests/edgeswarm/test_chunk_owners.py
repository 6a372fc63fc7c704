"""What each replica sends and handles in an all-reduce by owners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.chunk_owners import LEAST_CHUNK_BYTES, OwnersInTurn, exchange_steps, traffic


@given(st.integers(3, 40), st.data())
def test_whoever_owns_chunks_all_that_is_sent_is_the_same(replicas: int, data: st.DataObject) -> None:
    """Each replica's buffer goes to the owners but for what they have themselves, and as much comes back."""
    owners = data.draw(st.integers(1, replicas))
    shares = [traffic(replicas, owners, is_owner=place < owners) for place in range(replicas)]
    assert sum(share.sent for share in shares) == pytest.approx(2 * (replicas - 1))
    # A chunk to each owner, a sum from each; every frame is handled at both ends.
    assert sum(share.frames for share in shares) == 2 * 2 * owners * (replicas - 1)


def test_all_own_as_much_as_in_a_ring_and_two_exchange() -> None:
    assert traffic(4, 4, is_owner=True).sent == 2 * 3 / 4
    assert traffic(2, 2, is_owner=True).sent == traffic(2, 1, is_owner=False).sent == 1.0
    assert [exchange_steps(replicas) for replicas in (2, 3, 9)] == [1, 2, 2]


def test_over_one_link_goes_a_chunk_and_between_owners_a_sum_too() -> None:
    assert traffic(2, 2, is_owner=True).over_one_link == 1.0
    assert traffic(5, 1, is_owner=True).over_one_link == traffic(5, 1, is_owner=False).over_one_link == 1.0
    assert traffic(5, 4, is_owner=True).over_one_link == 2 / 4
    assert traffic(5, 4, is_owner=False).over_one_link == 1 / 4


@given(st.integers(2, 40), st.data())
def test_where_all_links_are_alike_the_card_is_the_limit(replicas: int, data: st.DataObject) -> None:
    owners = data.draw(st.integers(1, replicas))
    for is_owner in (True, False):
        does = traffic(replicas, owners, is_owner=is_owner)
        assert does.over_one_link <= does.sent


@pytest.mark.parametrize(
    ("chunks", "owners"), [(0, "a"), (0.5, "a"), (1, "a"), (2, "ab"), (2.9, "ab"), (3, "abc"), (100, "abc")]
)
def test_a_small_buffer_is_cut_for_few_owners(chunks: float, owners: str) -> None:
    assert "".join(OwnersInTurn("abc").of_next(chunks * LEAST_CHUNK_BYTES)) == owners


def test_small_buffers_of_a_round_are_owned_in_turns() -> None:
    """Whoever had one is not the next one's; a large one is of all and changes nothing."""
    owners = OwnersInTurn("abc")
    found = [owners.of_next(chunks * LEAST_CHUNK_BYTES) for chunks in (1, 9, 2, 1, 3, 2)]
    assert ["".join(each) for each in found] == ["a", "abc", "bc", "a", "abc", "bc"]
