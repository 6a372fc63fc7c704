"""Work beside the main thread, which stays free to hear of failures and of Ctrl-C."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_IMPORT_SECONDS = 60.0  # torch from a cold, slow disk
_LOOK_SECONDS = 0.02

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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
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
        An import is let finish first: a library's C++ that imports (torch's does) takes any exception there for the end
        of the process, and a library left half imported stays so for whoever needs it next.
        """
        imports_until = time.monotonic() + _IMPORT_SECONDS
        while not self.done and not self._interrupt():
            if time.monotonic() > imports_until:
                return False
            self._thread.join(_LOOK_SECONDS)
        self._thread.join(wait_seconds)
        return self.done

    def _interrupt(self) -> bool:
        """Raise `Abandoned` in the thread, unless it is importing; False then."""
        identifier = self._thread.ident
        assert identifier is not None, "the thread was started when the task was made"
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_IMPORT_SECONDS)  # the thread doesn't begin an import between our look and our act
        try:
            if _is_importing(identifier):
                return False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identifier), ctypes.py_object(Abandoned))
            return True
        finally:
            sys.setswitchinterval(interval)


def _is_importing(thread_identifier: int) -> bool:
    """Whether a thread is inside an `import` statement, however deep. A job's own file isn't imported so, but executed."""
    frame = sys._current_frames().get(thread_identifier)
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
