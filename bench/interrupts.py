"""An interrupt ends a measurement as a whole, and takes its devices, processes and groups along."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from edgeswarm.errors import EdgeswarmError, ErrorCode

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def terminate_as_ctrl_c_does() -> None:
    """From now on SIGTERM, and a terminal that is closed, let this process clean up, too; once, so that a second one doesn't stop
    it at that. Who started it with nohup has said that terminals don't matter.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def ends_all(cancel: threading.Event | None = None) -> Iterator[None]:
    """Around a training, which tells an interrupt as an error of its own: it would be taken for its failure, and the next one
    would begin. cancel: what the measurement itself ends the training with.
    """
    try:
        yield
    except EdgeswarmError as error:
        if error.code is ErrorCode.INTERRUPTED and not (cancel is not None and cancel.is_set()):
            raise KeyboardInterrupt from error
        raise
