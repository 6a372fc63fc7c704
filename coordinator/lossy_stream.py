"""A text stream whose failing ends nothing: what a program says is less than what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any


class LossyStream:
    """A text stream that may fail: what it doesn't take is lost, and the work of which it tells goes on.

    numbers: of the errors that are meant; all where there are none. A terminal that went away gives EIO, a pipe whose reader
    left EPIPE, a file on a full disk ENOSPC.
    """

    def __init__(self, stream: IO[str], *numbers: int) -> None:
        self._stream = stream
        self._numbers = numbers

    def write(self, text: str) -> int:
        self._forgive(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._forgive(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _forgive(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if self._numbers and error.errno not in self._numbers:
                raise
