"""The pace of planning, by real timers."""

from __future__ import annotations

import signal
import time

import pytest

from bench.planning_pace import slowness, timed


def test_a_piece_of_work_is_timed_without_the_looks_in_between() -> None:
    def busy() -> float:
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        return time.process_time() - begun

    found, seconds, looks = timed(busy)
    assert len(looks) > 1
    assert 0 < seconds < found  # the looks were among what it took
    assert abs(found - seconds - sum(looks[1:])) < 0.1 * found
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nothing_goes_on_behind_an_error() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ZeroDivisionError):
        timed(lambda: 1 // 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_slowness_is_told_by_the_best_of_all_looks_but_for_a_few() -> None:
    assert slowness((3.0, 1.0), of_all=[1.0] * 99 + [0.1]) == 2.0
