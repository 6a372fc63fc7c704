"""The stopwatch of a round."""

from __future__ import annotations

import time

import pytest

from edgeswarm_agent.worker.timing import ALL_REDUCE, BACKWARD, FORWARD, RoundClock


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
