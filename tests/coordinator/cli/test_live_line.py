"""The line about what goes on now: what runs, for how long, and how long it will still take."""

from __future__ import annotations

import pytest

from edgeswarm_coordinator.cli.live_line import Pace, RunningSteps, clock_time, readable_rate


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def running(clock: Clock) -> RunningSteps:
    return RunningSteps(clock)


def test_the_time_left_follows_from_the_pace() -> None:
    assert Pace(began=10.0, done=3, total=9).seconds_left(now=16.0) == pytest.approx(12.0)
    assert Pace(began=10.0, done=0, total=9).seconds_left(now=16.0) is None
    assert Pace(began=10.0, done=9, total=9).seconds_left(now=16.0) == 0.0
    assert Pace(began=10.0, done=30, total=90).rate(now=16.0) == pytest.approx(5.0)


def test_a_step_that_takes_long_says_for_how_long(running: RunningSteps, clock: Clock) -> None:
    running.begin("export model")
    assert running.text() == "export model"
    clock.now += 12.4
    assert running.text() == "export model 12 s"


def test_steps_that_overlap_are_all_named_until_they_end(running: RunningSteps) -> None:
    for step in ("find devices", "load job", "load job"):
        running.begin(step)
    running.end("load job")
    assert running.text() == "find devices, load job"
    running.end("find devices")
    running.end("a step that nobody began")
    assert running.text() == "load job"


def test_measurements_are_counted_and_the_time_left_is_told(running: RunningSteps, clock: Clock) -> None:
    assert running.count("profile layers", 1, 9) is None, "it doesn't run"
    running.begin("profile layers")
    clock.now += 60.0
    assert running.count("profile layers", 3, 9) == pytest.approx(120.0)
    assert running.text() == "profile layers 3/9, 2:00 left"


def test_a_transfer_has_bytes_rate_and_time_left(running: RunningSteps, clock: Clock) -> None:
    running.begin("send job files")
    clock.now += 2.0
    running.count_bytes("send job files", "nano-1", 4 * 2**20, 20 * 2**20)
    assert running.text() == "send job files (nano-1 4.0 MiB of 20.0 MiB, 2.0 MiB/s, 0:08 left) 2 s"


def test_what_the_workers_say_stands_behind_the_step(running: RunningSteps) -> None:
    running.note("prepare workers", "nano-1", "rehearse")
    running.begin("prepare workers")
    running.note("prepare workers", "nano-1", "fetch layers")
    running.note("prepare workers", "nano-2", "build stage")
    running.note("prepare workers", "nano-1", "rehearse")
    assert running.text() == "prepare workers (nano-1: rehearse; nano-2: build stage)"


@pytest.mark.parametrize(("seconds", "text"), [(41.2, "0:41"), (101.0, "1:41"), (7205.0, "2:00:05")])
def test_a_time_as_a_clock_shows_it(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1403.4, "1403"), (12.34, "12"), (9.876, "9.88"), (4.0, "4"), (0.4, "0.4"), (0.01234, "0.0123"), (0.0, "0")],
)
def test_a_small_rate_is_not_rounded_to_nothing(rate: float, text: str) -> None:
    assert readable_rate(rate) == text
