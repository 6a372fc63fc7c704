"""Ctrl-C, once and twice.

    first     sets the event that the work looks at; it stops and frees the devices
    second    leaves at once; the devices free themselves when they notice

SIGTERM and SIGHUP (a terminal that is closed) count as the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from edgeswarm.errors import ExitCode

from .console import hint

_SHOW_CURSOR = b"\x1b[?25h"  # the live line hides it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def cancelled_by_signals(what_is_cleaned_up: str = "the devices are being freed") -> Iterator[threading.Event]:
    """The event that the first signal sets, for as long as the block runs. Off the main thread no signal is caught."""
    cancel = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            # Nothing may hold this up: no clean-up handler, no thread that is waited for.
            os._exit(ExitCode.INTERRUPTED)
        cancel.set()
        hint(f"\nstopping: {what_is_cleaned_up} (Ctrl-C again leaves at once)")

    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return
    earlier = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield cancel
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
