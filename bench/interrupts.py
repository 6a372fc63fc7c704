"""An interrupt ends a measurement as a whole, and takes its devices, processes and groups along."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from edgeswarm.errors import EdgeswarmError, ErrorCode


def terminate_as_ctrl_c_does() -> None:
    """From now on SIGTERM, too, lets this process clean up; once, so that a second one doesn't stop it at that."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
