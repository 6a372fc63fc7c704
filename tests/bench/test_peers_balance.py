"""Shares and stages of the peers: what a competent user works out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers.balance import balanced_stages, corrected_speeds, shares_by_speed


@given(st.integers(8, 3000), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8))
def test_shares_add_up_and_leave_nobody_out(mini_batch: int, speeds: list[float]) -> None:
    shares = shares_by_speed(mini_batch, speeds)
    assert sum(shares) == mini_batch
    assert min(shares) >= 1


def test_shares_follow_speed() -> None:
    assert shares_by_speed(100, [3.0, 1.0]) == [75, 25]
    assert shares_by_speed(8, [1000.0, 1.0, 1.0]) == [6, 1, 1]
    with pytest.raises(ValueError, match="2 samples for 3 devices"):
        shares_by_speed(2, [1.0, 1.0, 1.0])


def test_who_idled_does_more_than_it_was_given() -> None:
    """The first was busy for half of two seconds, with a core of its own; the second all the time, with half of one."""
    assert corrected_speeds([30, 10], [1.0, 1.0], [1.0, 0.5]) == [30.0, 5.0]


def test_the_slowest_stage_is_as_fast_as_can_be() -> None:
    fast = balanced_stages([1.0] * 6, [0] * 6, slowness=[2.0, 1.0], bytes_per_second=1.0)
    assert sorted(zip(fast.devices, (fast.cuts[1], 6 - fast.cuts[1]), strict=True)) == [(0, 2), (1, 4)]
    assert fast.slowest_seconds == pytest.approx(4.0)


def test_a_link_that_costs_more_than_a_device_brings_leaves_it_out() -> None:
    cut = balanced_stages([1.0, 1.0], [100, 0], slowness=[1.0, 1.0], bytes_per_second=1.0)
    assert (cut.devices, cut.cuts) == ((0,), (0, 2))
    two = balanced_stages([1.0, 1.0], [100, 0], slowness=[1.0, 1.0], bytes_per_second=1.0, least_stages=2)
    assert two.cuts == (0, 1, 2)
    with pytest.raises(ValueError, match="3 stages of 2 blocks on 2 devices"):
        balanced_stages([1.0, 1.0], [100, 0], slowness=[1.0, 1.0], bytes_per_second=1.0, least_stages=3)


def test_no_more_stages_than_there_are_micro_batches() -> None:
    given = ([1.0] * 4, [0] * 4)
    assert len(balanced_stages(*given, slowness=[1.0] * 4, bytes_per_second=1.0).devices) == 4
    assert len(balanced_stages(*given, slowness=[1.0] * 4, bytes_per_second=1.0, most_stages=2).devices) == 2


def test_a_cut_goes_where_little_crosses_it() -> None:
    cut = balanced_stages([1.0, 1.0, 1.0, 1.0], [10, 10, 0, 0], slowness=[1.0, 1.0], bytes_per_second=2.0)
    assert cut.cuts == (0, 3, 4)
