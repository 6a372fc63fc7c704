"""Work beside the main thread, which stays free to hear of failures and of Ctrl-C."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

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
        """
        identifier = self._thread.ident
        if not self.done and identifier is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identifier), ctypes.py_object(Abandoned))
            self._thread.join(wait_seconds)
        return self.done
