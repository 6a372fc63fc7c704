"""Work beside the main thread, which stays free to hear of failures and of Ctrl-C."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import grpc

_IMPORT_SECONDS = 60.0  # torch from a cold, slow disk
_START_SECONDS = 5.0  # a thread, beside many others at work; one that hasn't started by then never will
_CALL_SECONDS = 5.0  # for gRPC to end a call whose channel is closed; torch's operations are over in moments
_CALLED_BY_TORCH = ("__torch_function__", "__torch_dispatch__")
_LOOK_SECONDS = 0.02
_GRPC_FOLDER = str(Path(grpc.__file__).parent)

_here = threading.local()  # .task: the one whose thread this is

Result = TypeVar("Result")


class Abandoned(BaseException):
    """Raised inside a task that nobody waits for any more. No Exception, so that the user's code doesn't catch it by accident."""


class Task(Generic[Result]):
    """A function that runs in a thread of its own from the moment the task is made.

    device: whom it deals with, for the blame when it fails; None for work on this machine alone.
    The thread is a daemon: a call that can't be interrupted doesn't keep the process from ending.
    """

    def __init__(self, function: Callable[[], Result], *, name: str, device: str | None = None) -> None:
        self.name = name
        self.device = device
        self.error: BaseException | None = None
        self._function = function
        self._result: Result | None = None
        self._cancels: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _here.task = self
        try:
            self._result = self._function()
        except BaseException as error:  # whoever waits raises it in the main thread
            self.error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the end, however it ends; False when it hasn't come in time."""
        self._thread.join(timeout_seconds)
        return self.done

    def result(self, timeout_seconds: float | None = None) -> Result:
        """What the function returned, waited for. Raises what it raised, and TimeoutError."""
        self._thread.join(timeout_seconds)
        if not self.done:
            raise TimeoutError(f"{self.name} is not done after {timeout_seconds} s")
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # set, since the function has returned

    def abandon(self, *, wait_seconds: float) -> bool:
        """End the task at the next Python instruction that it runs; True when it has ended within `wait_seconds`.

        A thread within a long call of C code (a matrix product, a blocking read) sees it only when that call returns.
        Four things are let finish first:
        - an import: a library's C++ that imports (torch's does) takes any exception there for the end of the process,
          and a library left half imported stays so for whoever needs it next;
        - the start of another thread: until it runs, CPython knows the new thread by the identifier of the one that makes
          it, so that the new one might get the exception;
        - gRPC: an exception amid its accounts of a call leaves a lock taken, so that closing the channel never ends, or a thread
          of its own at a queue that ends with the channel, a crash. `cancelled_when_abandoned` ends a call from outside;
        - what torch's C++ calls back for one operation, as it does for each while a model is exported: in places any exception
          there is the end of the process.
        What Python calls between two instructions (a weak reference's callback, `__del__`) swallows what is raised in it; the
        task gets it once more then.
        """
        swallowed = threading.Event()
        with _swallowed_abandonments(swallowed):
            begun, longest_seconds = time.monotonic(), 0.0
            while not self.done and (patience_seconds := self._interrupt()):
                longest_seconds = max(
                    longest_seconds, patience_seconds
                )  # a start may follow an import that took its time
                if time.monotonic() > begun + longest_seconds:
                    return False
                self._thread.join(_LOOK_SECONDS)
            until = time.monotonic() + wait_seconds
            while not self.done and time.monotonic() < until:
                if swallowed.is_set():
                    swallowed.clear()  # first: it may be swallowed again before we look
                    if self._interrupt():
                        swallowed.set()
                self._thread.join(min(_LOOK_SECONDS, max(0.0, until - time.monotonic())))
        return self.done

    def _interrupt(self) -> float:
        """Raise `Abandoned` in the thread, unless it is at something that must finish first: returns how many seconds that may
        take, 0 where nothing was in the way.
        """
        for cancel in tuple(self._cancels):
            cancel()
        identifier = self._thread.ident
        assert identifier is not None, "the thread was started when the task was made"
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_IMPORT_SECONDS)  # the thread begins neither between our look and our act
        with _no_garbage_collection():
            try:
                patience_seconds = _must_finish(identifier)
                if not patience_seconds and not self.done:  # another thread may have its identifier then
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identifier), ctypes.py_object(Abandoned))
                return patience_seconds
            finally:
                sys.setswitchinterval(interval)


@contextmanager
def cancelled_when_abandoned(cancel: Callable[[], object]) -> Iterator[None]:
    """Around what waits for something outside: whoever abandons the task that this thread is calls `cancel` first, from another
    thread, and perhaps several times. Does nothing where the thread is no task's.
    """
    task: Task[object] | None = getattr(_here, "task", None)
    if task is None:
        yield
        return
    task._cancels.append(cancel)
    try:
        yield
    finally:
        task._cancels.remove(cancel)


@contextmanager
def _swallowed_abandonments(swallowed: threading.Event) -> Iterator[None]:
    """Sets the event where an `Abandoned` is swallowed, and prints nothing of it."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        if issubclass(unraisable.exc_type, Abandoned):
            swallowed.set()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python before 3.11.9 holds a lock of the interpreter while it collects all threads' frames: garbage whose finalizers run
    there, and let another thread go on that starts a thread, would have both wait for ever (CPython's issue 106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _must_finish(thread_identifier: int) -> float:
    """The seconds that a thread may take for what it must finish: an `import` statement that it is inside of, however deep, the
    start of another thread, gRPC's part in a call, or what torch calls for an operation; 0 where it is at none of them.

    A job's own file isn't imported so, but executed.
    """
    patience_seconds = 0.0
    frame = sys._current_frames().get(thread_identifier)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            return _IMPORT_SECONDS
        if code is threading.Thread.start.__code__:
            patience_seconds = max(patience_seconds, _START_SECONDS)
        elif code.co_filename.startswith(_GRPC_FOLDER) or code.co_name in _CALLED_BY_TORCH:
            patience_seconds = max(patience_seconds, _CALL_SECONDS)
        frame = frame.f_back
    return patience_seconds
