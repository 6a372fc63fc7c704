"""Micro-batch sizes to look at."""

from __future__ import annotations

from edgeswarm_coordinator.planner.search.sizes import all_sizes, balanced_sizes, first_sizes


def test_few_many_and_all() -> None:
    assert first_sizes(32, least_batch=1) == (1, 2, 4, 8, 16, 32)
    assert balanced_sizes(32, least_batch=1) == (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32)
    assert all_sizes(32, least_batch=1) == tuple(range(1, 33))
    assert all_sizes(127, least_batch=1) == balanced_sizes(127, least_batch=1)


def test_of_a_large_mini_batch_no_size_leaves_a_rest() -> None:
    assert all_sizes(2048, least_batch=2) == tuple(2**power for power in range(1, 12))
    assert all_sizes(100, least_batch=2) == (2, 4, 5, 10, 20, 25, 50, 100)


def test_no_micro_batch_is_below_the_least_batch() -> None:
    assert balanced_sizes(32, least_batch=3) == (4, 7, 8, 11, 16, 32)  # 3, 5 and 6 leave 2
