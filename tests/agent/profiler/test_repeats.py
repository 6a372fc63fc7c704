from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_agent.profiler.repeats import (
    FEW_PAGE_FAULTS,
    MOST_UNSETTLED,
    Stretch,
    settled,
    typical,
    wants_more,
)


@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=20), st.floats(2, 1e3))
def test_one_hiccup_changes_little(seconds: list[float], hiccup: float) -> None:
    assert 0.9 <= typical([*seconds, hiccup]).seconds <= 1.1


def test_of_two_that_differ_much_the_smaller_one_counts() -> None:
    assert typical([3.0, 2.0]).seconds == 2.0
    assert typical([3.0, 2.0]).relative_error == pytest.approx(0.5)
    assert typical([2.0, 2.2]).seconds == pytest.approx(2.1)
    assert typical([2.0]).relative_error == 0.0
    with pytest.raises(ValueError, match="no repeats"):
        typical([])


def test_the_error_is_about_how_far_medians_of_such_repeats_lie_apart() -> None:
    generator = random.Random(1)
    runs = [[generator.gauss(1.0, 0.1) for _ in range(25)] for _ in range(200)]
    medians = [typical(run) for run in runs]
    off = (sum((median.seconds - 1.0) ** 2 for median in medians) / len(medians)) ** 0.5
    said = sum(median.relative_error for median in medians) / len(medians)
    assert said == pytest.approx(off, rel=0.3)


def test_a_quota_is_seen_in_the_long_run() -> None:
    stretch = Stretch()
    assert stretch.factor == 1.0
    for _ in range(50):  # 1.2 ms of computing in each 10 ms
        stretch.add(0.01, 0.0012)
    assert stretch.is_stalled
    assert stretch.factor == pytest.approx(0.01 / 0.0012)


def test_several_threads_are_no_stall() -> None:
    assert not Stretch(wall_seconds=1.0, cpu_seconds=3.5).is_stalled
    assert not Stretch(wall_seconds=1.0, cpu_seconds=0.9).is_stalled


def test_repeats_that_took_new_memory_do_not_count() -> None:
    assert settled([900, 300, 0, 2, 1], least=3) == [2, 3, 4]
    assert settled([0, 0, 300, 0, 0], least=3) == [0, 1, 3, 4]


def test_where_all_take_new_memory_those_count_that_took_least() -> None:
    assert settled([900, 300, 0, 40, 500], least=3) == [1, 2, 3]
    assert settled([70, 70], least=2) == [0, 1]


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 3))
def test_enough_is_kept_and_the_rest_took_no_less(page_faults: list[int], least: int) -> None:
    kept = settled(page_faults, least=least)
    assert kept == sorted(set(kept))
    assert len(kept) >= min(least, len(page_faults))
    left = [count for place, count in enumerate(page_faults) if place not in kept]
    assert all(count > FEW_PAGE_FAULTS for count in left)
    assert min(left, default=1000) >= max((page_faults[place] for place in kept), default=0)


def test_more_are_tried_while_too_few_have_settled() -> None:
    assert wants_more([900, 300, 20], least=3)
    assert wants_more([900, 300, 0, 0], least=3)
    assert not wants_more([900, 300, 0, 0, 0], least=3)
    assert not wants_more([900] * (3 + MOST_UNSETTLED), least=3)
