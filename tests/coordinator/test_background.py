from __future__ import annotations

import threading

import pytest

from edgeswarm_coordinator.background import Abandoned, Task


def test_a_task_gives_what_its_function_returns_or_raises() -> None:
    assert Task(lambda: 3, name="three").result() == 3
    with pytest.raises(ValueError, match="invalid literal"):
        Task(lambda: int("x"), name="fails").result()


def test_a_result_that_is_late_is_a_timeout() -> None:
    go = threading.Event()
    task = Task(go.wait, name="waits")
    with pytest.raises(TimeoutError, match="waits"):
        task.result(0.01)
    go.set()
    assert task.result() is True


def test_an_abandoned_task_ends_at_its_next_instruction() -> None:
    def count() -> None:
        number = 0
        while True:
            number += 1

    task = Task(count, name="counts")
    assert task.abandon(wait_seconds=10)
    assert isinstance(task.error, Abandoned)
    assert task.abandon(wait_seconds=0)
