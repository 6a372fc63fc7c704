from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_agent.profiler.layer_timing import Timing
from edgeswarm_agent.profiler.second_look import after_second_look, sizes_to_look_at, takes_little


def curve(*sizes: int, slower: float = 1.0) -> list[Timing]:
    """A third of the seconds forward."""
    return [Timing(size, slower * size * 1e-3, slower * size * 2e-3, 0.01, 100 * size) for size in sizes]


def test_a_middle_and_the_largest_size_are_looked_at() -> None:
    assert sizes_to_look_at(curve(1, 16, 64, 256)) == [64, 256]
    assert sizes_to_look_at(curve(1, 16, 256)) == [16, 256]
    assert sizes_to_look_at(curve(4)) == [4]
    assert sizes_to_look_at([]) == []
    assert sizes_to_look_at(curve(1, 16, 64), largest_alone=True) == [64]
    assert sizes_to_look_at([], largest_alone=True) == []


def test_what_takes_next_to_nothing_a_sample_is_not_looked_at_again() -> None:
    curves = {"large": curve(1, 64), "half": curve(1, 16, slower=0.5), "tiny": curve(1, 256, slower=0.01), "none": []}
    assert takes_little(curves) == {"tiny", "none"}
    assert takes_little({"only": curve(4)}) == set()
    assert takes_little({}) == set()


def test_both_looks_count() -> None:
    first = curve(1, 4, 16, 64, 256, slower=1.2)
    found = after_second_look(first, curve(16, 256, slower=1.0 / 1.2))
    assert [timing.seconds for timing in found] == pytest.approx(
        [timing.seconds for timing in curve(1, 4, 16, 64, 256)]
    )
    assert [timing.peak_bytes for timing in found] == [timing.peak_bytes for timing in first]
    slower = after_second_look(curve(1, 16, 256), curve(16, 256, slower=1.21))
    assert [timing.seconds for timing in slower] == pytest.approx(
        [timing.seconds for timing in curve(1, 16, 256, slower=1.1)]
    )


def test_a_disturbed_look_does_not_count() -> None:
    quiet = [timing.seconds for timing in curve(1, 4, 16, 64, 256)]
    first = after_second_look(curve(1, 4, 16, 64, 256, slower=2.0), curve(16, 256))
    assert [timing.seconds for timing in first] == pytest.approx(quiet)
    second = after_second_look(curve(1, 4, 16, 64, 256), curve(16, 256, slower=2.0))
    assert [timing.seconds for timing in second] == pytest.approx(quiet)


def test_one_size_that_was_slow_leaves_the_small_ones_alone() -> None:
    first = curve(1, 16, 64, 256)
    first[-1] = replace(first[-1], forward_seconds=0.512, backward_seconds=1.024)
    found = after_second_look(first, curve(16, 256))
    assert found[:2] == first[:2]
    assert found[2].seconds == pytest.approx(0.75 * first[2].seconds), "half way, by the ratio"
    assert found[3].seconds == pytest.approx(0.5 * first[3].seconds)


def test_without_a_second_look_the_first_one_stays() -> None:
    assert after_second_look(curve(1, 16, 256), []) == curve(1, 16, 256)
    assert after_second_look([], []) == []


@given(
    first=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6),
    second=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=2),
)
def test_what_was_looked_at_twice_lies_between_both_looks(first: list[float], second: list[float]) -> None:
    looked = [curve(4**place, slower=slower)[0] for place, slower in enumerate(first)]
    sizes = sizes_to_look_at(looked)
    again = [curve(size, slower=slower)[0] for size, slower in zip(sizes, second, strict=False)]
    looks = {timing.batch_size: [timing.seconds] for timing in looked}
    for timing in again:
        looks[timing.batch_size].append(timing.seconds)
    for found in after_second_look(looked, again):
        if len(both := looks[found.batch_size]) == 2:
            assert min(both) * (1 - 1e-9) <= found.seconds <= max(both) * (1 + 1e-9)
