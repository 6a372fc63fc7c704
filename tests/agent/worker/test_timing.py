"""The stopwatch of a round."""

from __future__ import annotations

import threading
import time

import pytest

from edgeswarm.model.draws import TURNS
from edgeswarm_agent.worker.timing import ALL_REDUCE, BACKWARD, FORWARD, TRANSFORM, Progress, RoundClock


def compute(cpu_seconds: float) -> float:
    """What it took, by the processor."""
    begin = time.thread_time()
    while time.thread_time() - begin < cpu_seconds:
        pass
    return time.thread_time() - begin


def test_the_parts_add_up_to_the_round() -> None:
    clock = RoundClock()
    clock.begin_round()
    with clock.part(FORWARD):
        compute(0.01)
        with clock.part(ALL_REDUCE):
            time.sleep(0.01)
    seconds, parts = clock.end_round()
    assert seconds == pytest.approx(sum(parts.values()))
    assert parts[FORWARD] >= 0.01
    assert parts[ALL_REDUCE] >= 0.01


def test_the_processors_seconds_of_the_model_are_told_apart() -> None:
    clock = RoundClock()
    clock.begin_round()
    compute(0.02)
    with clock.part(FORWARD):
        model = compute(0.01)
        with clock.part(ALL_REDUCE):
            compute(0.02)
        model += compute(0.01)
    with clock.part(BACKWARD):
        model += compute(0.01)
    clock.end_round()
    assert model <= clock.model_cpu_seconds < model + 0.01
    clock.begin_round()
    assert clock.model_cpu_seconds == 0.0


def test_the_longest_of_a_kind_is_that_of_this_epoch() -> None:
    progress = Progress()
    progress.set("forward of micro-batch 0", kind=FORWARD)
    time.sleep(0.01)
    progress.set("idle")
    progress.set("forward of micro-batch 1", kind=FORWARD)
    assert progress.read().longest_seconds >= 0.01
    progress.set("idle")
    progress.begin_epoch(2)
    progress.set("forward of micro-batch 0", kind=FORWARD)
    assert progress.read().longest_seconds == 0.0
    assert progress.epoch == 2


def test_who_waits_for_its_turn_is_at_what_the_other_one_computes() -> None:
    """A layer that draws waits for a transform, however long that takes: the layer doesn't hang."""
    feed, progress = Progress(longest_seconds=15.0), Progress(waits_for_turn=lambda: TURNS.first_waits)
    progress.set("forward of micro-batch 0", kind=FORWARD, turns_with=feed)

    def forward() -> None:
        with TURNS.first():
            pass

    computing = threading.Thread(target=forward)
    with feed.during("transform of item 7", kind=TRANSFORM), TURNS.after_others():
        assert progress.read().action == "forward of micro-batch 0"
        computing.start()
        until = time.monotonic() + 10
        while not TURNS.first_waits and time.monotonic() < until:
            time.sleep(0.001)
        assert progress.read().action == "transform of item 7"
    computing.join(10)
    assert progress.read().action == "forward of micro-batch 0"


def test_who_waits_for_a_thread_is_at_what_that_one_computes() -> None:
    feed, progress = Progress(longest_seconds=15.0), Progress()
    progress.set("waiting for samples", beside=feed)
    assert progress.read().action == "waiting for samples"
    with feed.during("transform of item 7", kind=TRANSFORM):
        doing = progress.read()
        assert (doing.action, doing.kind, doing.longest_seconds) == ("transform of item 7", TRANSFORM, 15.0)
        progress.set("forward of micro-batch 0", kind=FORWARD)
        assert progress.read().action == "forward of micro-batch 0"
    progress.set("waiting for samples", beside=feed)
    assert progress.read().kind == ""
