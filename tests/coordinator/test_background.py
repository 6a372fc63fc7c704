from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from pathlib import Path
from types import FrameType

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


def test_a_task_that_imports_ends_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ that imports (torch's initialisation) ends the process when an exception comes out of the import."""
    inside, go = threading.Event(), threading.Event()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "slow_import", (inside, go), raising=False)
    (tmp_path / "imports_slowly.py").write_text(
        "import sys\ninside, go = sys.slow_import\ninside.set()\nwhile not go.is_set():\n    pass\nDONE = True\n"
    )

    def count() -> None:
        importlib.import_module("imports_slowly")
        while True:
            pass

    task = Task(count, name="imports")
    assert inside.wait(10)
    abandoning = Task(lambda: task.abandon(wait_seconds=10), name="abandons")
    with pytest.raises(TimeoutError):
        abandoning.result(0.2)
    go.set()
    assert abandoning.result(10)
    assert isinstance(task.error, Abandoned)
    assert sys.modules.pop("imports_slowly").DONE


def test_a_task_that_starts_a_thread_ends_itself_and_not_that_thread() -> None:
    """CPython knows a thread that doesn't run yet by the identifier of the one that starts it."""
    threads: list[threading.Thread] = []
    broken: list[object] = []

    def start_threads() -> None:
        while True:
            threads.append(threading.Thread(target=int))
            threads[-1].start()
            time.sleep(0.0005)  # where else the look may find it

    hook, threading.excepthook = threading.excepthook, broken.append
    unraisable, sys.unraisablehook = sys.unraisablehook, broken.append
    try:
        for _ in range(100):
            task = Task(start_threads, name="starts threads")
            assert task.abandon(wait_seconds=10)
            assert isinstance(task.error, Abandoned)
            for thread in threads:
                thread.join(10)
            threads.clear()
    finally:
        threading.excepthook, sys.unraisablehook = hook, unraisable
    assert broken == []


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_a_task_is_looked_at(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalizers that run there may have the whole process wait for ever; what a program chose for itself stays."""
    enabled: list[bool] = []
    current_frames = sys._current_frames

    def sleep() -> None:
        for _ in range(1000):
            time.sleep(0.01)

    def look() -> dict[int, FrameType]:
        enabled.append(gc.isenabled())
        return current_frames()

    monkeypatch.setattr(sys, "_current_frames", look)
    was_enabled = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        task = Task(sleep, name="sleeps")
        assert task.abandon(wait_seconds=10)
        assert enabled
        assert not any(enabled)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was_enabled else gc.disable)()
