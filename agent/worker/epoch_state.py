"""The one switch of an epoch: running, or ended by a halt or by its first error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from .errors import HaltedError


class EpochSwitch:
    """First error latches: whoever fails first decides how the epoch ends, later operations raise the same.

    Threads that wait register a wake-up, which is called once when the switch is thrown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._wake_ups: list[Callable[[], None]] = []
        self._thrown = threading.Event()

    @property
    def is_thrown(self) -> bool:
        return self._thrown.is_set()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def on_thrown(self, wake_up: Callable[[], None]) -> None:
        """Calls `wake_up` when the epoch ends; at once where it has ended."""
        with self._lock:
            if self._error is None:
                self._wake_ups.append(wake_up)
                return
        wake_up()

    def fail(self, error: BaseException) -> bool:
        """Ends the epoch with this error; False when it had ended already."""
        with self._lock:
            if self._error is not None:
                return False
            self._error = error
            wake_ups, self._wake_ups = self._wake_ups, []
        self._thrown.set()
        for wake_up in wake_ups:
            with contextlib.suppress(RuntimeError):  # no thread can be started: all others shall wake up nevertheless
                wake_up()
        return True

    def halt(self) -> bool:
        return self.fail(HaltedError())

    def end_with(self, met: BaseException) -> BaseException | None:
        """Ends the epoch where it still runs; what there is to tell of its end, None where it was halted.

        What a thread met may only follow from the first error: a feed that is closed says `halted` after a broken link, too.
        """
        self.fail(met)
        return None if isinstance(self._error, HaltedError) else self._error

    def check(self) -> None:
        """Raises what ended the epoch; cheap enough to be called between layers."""
        if self._error is not None:
            raise self._error

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not beyond the end of the epoch. Raises what ended it."""
        self._thrown.wait(seconds)
        self.check()
