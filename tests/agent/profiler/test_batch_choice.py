from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_agent.profiler.batch_choice import (
    MOST_POINTS,
    expected_seconds,
    first_choice,
    next_batch,
    smaller_choice,
)

POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def chosen(seconds_of: Callable[[int], float], candidates: tuple[int, ...] = POWERS) -> list[int]:
    """The sizes that are measured where each takes what `seconds_of` says."""
    measured: dict[int, float] = {}
    while (size := next_batch(sorted(measured.items()), candidates)) is not None:
        assert size not in measured
        measured[size] = seconds_of(size)
    return sorted(measured)


def test_a_straight_line_takes_three_measurements() -> None:
    assert chosen(lambda size: 0.01 + 0.003 * size) == [1, 16, 256]


def test_a_bend_gets_more_points_beside_it() -> None:
    sizes = chosen(lambda size: 0.1 + 0.001 * size if size < 32 else 0.1 + 0.02 * (size - 30))
    assert {1, 16, 256} < set(sizes)
    assert 64 in sizes
    assert len(sizes) <= MOST_POINTS


@pytest.mark.parametrize(("candidates", "first"), [((1,), (1,)), ((1, 2), (1, 2)), ((2, 4, 8, 16), (2, 8, 16))])
def test_the_first_sizes(candidates: tuple[int, ...], first: tuple[int, ...]) -> None:
    assert first_choice(candidates) == first


@given(st.lists(st.integers(1, 512), min_size=1, max_size=10, unique=True).map(sorted), st.randoms())
def test_it_ends_whatever_is_measured(candidates: list[int], noise: object) -> None:
    sizes = chosen(lambda size: noise.random() + 1e-9, tuple(candidates))  # type: ignore[attr-defined]
    assert set(first_choice(candidates)) <= set(sizes) <= set(candidates)
    assert len(sizes) <= max(MOST_POINTS, 3)


def test_a_size_that_is_too_large_gives_way_to_the_next_smaller_one() -> None:
    assert smaller_choice(256, [(1, 1.0), (16, 2.0)], POWERS) == 128
    assert smaller_choice(16, [(1, 1.0), (16, 2.0)], POWERS) is None


def test_what_a_larger_batch_will_take() -> None:
    assert expected_seconds([], 8) == 0.0
    assert expected_seconds([(1, 1.0)], 256) == 1.0  # nothing is known of its growth
    assert expected_seconds([(1, 1.0), (16, 4.0)], 31) == pytest.approx(7.0)
    assert expected_seconds([(1, 1.0), (16, 0.5)], 32) == pytest.approx(0.5)
