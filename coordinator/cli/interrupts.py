"""Ctrl-C, once and twice.

    the first one       sets the event that the work looks at; it stops and frees the devices
    Ctrl-C after that   leaves at once; the devices free themselves when they notice

SIGTERM (`edgeswarm stop`) and SIGHUP (a terminal that is closed) count as the first and are nothing new after it; a training goes
on without its terminal. Where SIGHUP is ignored from the beginning (nohup), it stays so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from edgeswarm.errors import ExitCode

from .console import hint

_SHOW_CURSOR = b"\x1b[?25h"  # the live line hides it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def cancelled_by_signals(
    what_is_cleaned_up: str = "the devices are being freed", *, hang_up: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """The event that the first signal sets, for as long as the block runs. Off the main thread no signal is caught.

    hang_up: called instead when the terminal goes away, within a signal handler: it may take no lock that others hold.
    """
    cancel = threading.Event()
    asked = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP and hang_up is not None:
            hang_up()
            return
        if asked and number != signal.SIGINT:
            return  # it stops already; `edgeswarm stop --now` is for whoever won't wait
        if asked:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            # Nothing may hold this up: no clean-up handler, no thread that is waited for.
            os._exit(ExitCode.INTERRUPTED)
        asked = True
        # The rest on a thread: the main one, which runs this, may be inside the event's `wait` or a print, with its lock.
        os.write(wakes, b"!")

    def cancel_when_woken() -> None:
        with os.fdopen(woken, "rb", buffering=0) as pipe:
            if not pipe.read(1):
                return
        again = " (Ctrl-C again leaves at once)" if sys.stderr.isatty() else ""
        with contextlib.suppress(OSError):  # nobody may read it any more
            hint(f"\nstopping: {what_is_cleaned_up}{again}")
        cancel.set()

    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return
    woken, wakes = os.pipe()
    threading.Thread(target=cancel_when_woken, name="cancel", daemon=True).start()
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = [number for number in _SIGNALS if not (nohup and number == signal.SIGHUP)]
    earlier = {number: signal.signal(number, on_signal) for number in caught}
    try:
        yield cancel
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(wakes)
