"""Rings whose slowest link is as fast as can be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_coordinator.planner.search.rings import ring_order, slowest_of_ring


def test_slow_links_are_left_out() -> None:
    fast = {(0, 2), (2, 1), (1, 3), (3, 0)}
    links = [[10.0 if (a, b) in fast else 1.0 for b in range(4)] for a in range(4)]
    assert ring_order((3, 1, 2, 0), links) == (0, 2, 1, 3)


def test_all_alike_is_ascending() -> None:
    assert ring_order((4, 2, 7), [[5.0] * 8] * 8) == (2, 4, 7)


@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=4, max_size=4), min_size=4, max_size=4))
def test_no_ring_is_faster(links: list[list[float]]) -> None:
    best = max(slowest_of_ring(ring, links) for ring in itertools.permutations(range(4)))
    assert slowest_of_ring(ring_order(range(4), links), links) == best
