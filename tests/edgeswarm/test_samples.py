from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.samples import Interval, SampleOrder, micro_batch_sizes, overlaps, split_in_passes, split_micro_batch


def test_an_epoch_sees_every_sample_once_and_ends_with_a_smaller_round() -> None:
    order = SampleOrder(dataset_length=10, batch_size=4, seed=3)
    assert order.rounds_per_epoch == 3
    assert [order.samples_of(r) for r in range(4)] == [4, 4, 2, 4]
    assert [order.epoch_of(r) for r in range(4)] == [0, 0, 0, 1]
    assert sorted(order.permutation(0).tolist()) == list(range(10))


def test_what_is_left_over_can_be_left_out() -> None:
    order = SampleOrder(dataset_length=10, batch_size=4, seed=3, drop_last=True)
    assert order.rounds_per_epoch == 2
    assert [order.samples_of(r) for r in range(4)] == [4, 4, 4, 4]
    assert [order.epoch_of(r) for r in range(4)] == [0, 0, 1, 1]
    assert (order.permutation(1) == SampleOrder(10, 4, 3).permutation(1)).all()
    rests = [(SampleOrder(10, size, 3).rest, SampleOrder(10, size, 3, drop_last=True).rest) for size in (4, 5, 10)]
    assert rests == [(2, 0), (0, 0), (0, 0)]
    with pytest.raises(ValueError, match="no round with drop_last"):
        SampleOrder(dataset_length=3, batch_size=4, seed=3, drop_last=True)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    order = SampleOrder(dataset_length=50, batch_size=4, seed=3)
    assert (order.permutation(2) == SampleOrder(50, 7, 3).permutation(2)).all()
    assert (order.permutation(0) != order.permutation(1)).any()
    assert (order.permutation(0) != SampleOrder(50, 4, 2**40 + 3).permutation(0)).any()


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 2))
def test_micro_batches_hold_all_samples_and_none_is_too_small(samples: int, micro_batch: int, least: int) -> None:
    sizes = micro_batch_sizes(samples, micro_batch=micro_batch, least_batch=least)
    assert sum(sizes) == samples
    assert max(sizes) <= micro_batch
    if len(sizes) > 1 and micro_batch > least:
        assert min(sizes) >= least


shares = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


@given(shares, st.data(), st.integers(1, 2))
def test_a_split_covers_the_micro_batch_in_order_within_the_shares(
    shares: dict[str, int], data: st.DataObject, least: int
) -> None:
    size = data.draw(st.integers(1, sum(shares.values())))
    intervals = split_micro_batch(shares, size, least_batch=least)
    end = 0
    for name, interval in intervals.items():
        assert interval.first == end
        assert interval.size <= shares[name]
        end = interval.end
    assert end == size


def test_a_replica_that_would_get_too_little_gives_it_to_one_with_room() -> None:
    assert split_micro_batch({"a": 6, "b": 2}, 4, least_batch=2) == {"a": Interval(0, 4), "b": Interval(4, 4)}


@given(shares, shares, st.data())
def test_overlaps_of_two_stages_cover_each_interval_exactly(
    here: dict[str, int], there: dict[str, int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, min(sum(here.values()), sum(there.values()))))
    theirs = split_micro_batch(there, size)
    for interval in split_micro_batch(here, size).values():
        parts = [part for _, part in overlaps(interval, theirs)]
        assert sum(part.size for part in parts) == interval.size
        assert all(before.end == after.first for before, after in itertools.pairwise(parts))


def test_more_samples_than_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="more than the shares"):
        split_micro_batch({"a": 2}, 3)


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 70), st.integers(1, 4))
def test_passes_cover_the_interval_in_parts_of_nearly_one_size(first: int, size: int, at_once: int, least: int) -> None:
    parts = split_in_passes(Interval(first, first + size), at_once=at_once, least_batch=least)
    assert [parts[0].first, *(part.end for part in parts)] == [*(part.first for part in parts), first + size]
    sizes = [part.size for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(least, size)
    if size >= -(-size // at_once) * least:
        assert len(parts) == -(-size // at_once)
        assert max(sizes) <= at_once
