"""Micro-batch sizes to look at."""

from __future__ import annotations

from edgeswarm_coordinator.planner.search.sizes import all_sizes, balanced_sizes, first_sizes


def test_few_many_and_all() -> None:
    assert first_sizes(32, least_batch=1) == (1, 2, 4, 8, 16, 32)
    assert balanced_sizes(32, least_batch=1) == (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32)
    assert all_sizes(32, least_batch=1) == tuple(range(1, 33))
    assert all_sizes(256, least_batch=1) == balanced_sizes(256, least_batch=1)


def test_no_micro_batch_is_below_the_least_batch() -> None:
    assert balanced_sizes(32, least_batch=3) == (4, 7, 8, 11, 16, 32)  # 3, 5 and 6 leave 2
