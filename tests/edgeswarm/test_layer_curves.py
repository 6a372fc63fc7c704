"""One layer's seconds before, between and beyond the batch sizes that were measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.layer_curves import ERROR_OF_A_DOUBLING, extrapolation_error, layer_seconds


def seconds_at(sizes: tuple[int, ...], seconds: tuple[float, ...], *batches: int) -> list[float]:
    found: list[float] = layer_seconds(sizes, np.array(seconds)[:, np.newaxis], np.array(batches))[:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("batch", "seconds"),
    # Beyond, the mean slope of half a second a sample: the last one, a quarter, was quicker than the curve as a whole.
    [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (6, 4.5), (8, 5.0), (12, 7.0)],
)
def test_the_curve(batch: int, seconds: float) -> None:
    # At 1 the first slope gives 1, and 2 * 1/2 is 1: the curve below is the same line.
    assert seconds_at((2, 4, 8), (2.0, 4.0, 5.0), batch) == pytest.approx([seconds])


def test_below_the_first_it_is_never_faster_than_in_proportion_nor_slower_than_the_first() -> None:
    assert seconds_at((4, 8), (4.0, 40.0), 1) == pytest.approx([1.0])
    assert seconds_at((4, 8), (4.0, 2.0), 1) == pytest.approx([4.0])
    assert seconds_at((4, 8), (4.0, 5.0), 1) == pytest.approx([3.25])


def test_beyond_the_last_a_steeper_end_goes_on() -> None:
    assert seconds_at((1, 2, 4), (1.0, 1.5, 4.5), 8) == pytest.approx([10.5])


def test_beyond_the_last_a_fall_or_a_flat_end_makes_nothing_free() -> None:
    # A quarter of the best seconds per sample, 3/8 of a second, for each of 72 samples more.
    assert seconds_at((4, 8), (4.0, 3.0), 80) == pytest.approx([3.0 + 72 * 3 / 8 / 4])
    assert seconds_at((8, 16), (30.0, 30.0), 32) == pytest.approx([30.0 + 16 * 30 / 16 / 4])
    # The curve before the flat end rose by 29 in 15 samples.
    assert seconds_at((1, 8, 16), (1.0, 30.0, 30.0), 31) == pytest.approx([30.0 + 29.0])


def test_behind_a_cliff_only_what_is_there_counts() -> None:
    """8: 96, 16: 29, 32: 59 milliseconds, as if the curve had ended at 16."""
    assert seconds_at((8, 16), (96.0, 29.0), 32, 256) == pytest.approx([58.0, 464.0])
    assert seconds_at((8, 16, 32), (96.0, 29.0, 59.0), 48) == pytest.approx([59.0 + 16 * 30 / 16])
    assert seconds_at((1, 2, 4, 8), (9.0, 5.0, 12.0, 4.0), 16) == pytest.approx([8.0])  # the last of two


def test_before_a_cliff_the_slope_goes_on() -> None:
    """Nobody measured where the cheap kernel begins."""
    assert seconds_at((4, 8, 16), (1.0, 2.0, 0.5), 12, 16) == pytest.approx([3.0, 0.5])
    assert seconds_at((4, 8, 16), (4.0, 4.4, 4.0), 12) == pytest.approx([4.2])  # noise is no cliff
    assert seconds_at((4, 8), (1.0, 0.2), 6) == pytest.approx([1.5])


def test_one_batch_size_means_in_proportion() -> None:
    assert seconds_at((4,), (2.0,), 0, 1, 4, 8) == pytest.approx([0.0, 0.5, 2.0, 4.0])


def test_fewer_than_no_samples() -> None:
    with pytest.raises(ValueError, match="a batch of -1 samples"):
        seconds_at((4,), (2.0,), 3, -1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5, unique=True).map(sorted),
    st.lists(st.lists(st.floats(0.01, 100), min_size=5, max_size=5), min_size=1, max_size=3),
)
def test_what_was_measured_is_met_and_more_than_that_costs_more(sizes: list[int], layers: list[list[float]]) -> None:
    rows = np.array(layers).T[: len(sizes)]
    found = layer_seconds(sizes, rows, np.arange(90))
    assert np.allclose(found[sizes], rows, rtol=1e-12)
    assert (np.diff(found[sizes[-1] :], axis=0) > 0).all()
    # Each layer by itself, one batch at a time.
    for layer in range(rows.shape[1]):
        alone = [layer_seconds(sizes, rows[:, [layer]], np.array([batch]))[0, 0] for batch in range(0, 90, 7)]
        assert np.array_equal(alone, found[::7, layer])


def test_nobody_knows_better_than_by_doublings() -> None:
    errors = extrapolation_error(np.array([8, 32, 64]), 32)
    assert errors == pytest.approx([2 * ERROR_OF_A_DOUBLING, 0.0, 0.0])
