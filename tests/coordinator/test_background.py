from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_channel, secure_server
from edgeswarm_coordinator.background import Abandoned, Task, cancelled_when_abandoned


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


def test_a_task_amid_what_torch_calls_for_an_operation_ends_behind_it() -> None:
    """In places an exception there ends the process: `std::terminate`, seen while a model was exported."""
    begun, finished = [0], [0]

    class Slow(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            begun[0] += 1
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                pass
            finished[0] += 1
            return func(*args, **(kwargs or {}))

    def compute() -> None:
        ones = torch.ones(2)
        with Slow():  # type: ignore[no-untyped-call]
            while True:
                ones + ones
                time.sleep(0.05)

    task = Task(compute, name="computes")
    while not begun[0]:
        time.sleep(0.001)
    assert task.abandon(wait_seconds=10)
    assert isinstance(task.error, Abandoned)
    assert begun == finished


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


def test_what_grpc_does_is_let_finish_and_a_call_is_cancelled_from_outside(authority: CertificateAuthority) -> None:
    """An exception amid gRPC's accounts of a call, and closing its channel never ends, or crashes."""

    def count(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            yield b"chunk"

    device = authority.issue(node_id="nano-1-000001", role=Role.AGENT)
    operator = authority.issue(node_id="operator-here-00000f", role=Role.OPERATOR)
    handlers = [raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(count)})]
    server, port = secure_server(device, address="127.0.0.1:0", workers=2, handlers=handlers)
    server.start()

    def fetch(has_begun: threading.Event) -> None:
        address = f"127.0.0.1:{port}"
        with (
            secure_channel(address, identity=operator, node_id=device.node_id) as channel,
            cancelled_when_abandoned(channel.close),
        ):
            ask: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/edgeswarm.wire.v1.Layers/Fetch")
            for _ in ask(b"", timeout=60):
                has_begun.set()

    try:
        for _ in range(20):
            begun = threading.Event()
            task = Task(partial(fetch, begun), name="fetches")
            assert begun.wait(10)
            assert task.abandon(wait_seconds=10)
            assert isinstance(task.error, (grpc.RpcError, Abandoned))
    finally:
        server.stop(None).wait()


def test_outside_of_a_task_nothing_is_cancelled() -> None:
    cancelled: list[bool] = []
    with cancelled_when_abandoned(lambda: cancelled.append(True)):
        pass
    assert cancelled == []


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
