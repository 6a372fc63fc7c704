"""The pace of planning, by real timers."""

from __future__ import annotations

import signal
import time

import pytest

from bench.planning_pace import timed


def test_a_piece_of_work_is_timed_without_the_looks_in_between() -> None:
    def busy() -> float:
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        return time.process_time() - begun

    found, seconds, reference = timed(busy)
    assert 0 < reference < seconds < found  # the looks were among what it took
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nothing_goes_on_behind_an_error() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ZeroDivisionError):
        timed(lambda: 1 // 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before
