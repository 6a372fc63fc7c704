"""Where a training's progress goes: to the terminal while somebody watches, and to the run's log.txt always.

    event ──┬── Progress on the terminal ──── until it hangs up, or `train --detach` has let it go
            └── Progress in log.txt

Letting go points the process's own streams at log.txt, so that what the user's code prints, and an error at the end, is
found there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from edgeswarm.errors import EdgeswarmError

from ..events import Event
from .console import STANDARD_ERROR, STANDARD_OUTPUT, file_console, prints_to_standard_error, progress_console
from .plan_view import show_plan_made
from .progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

STANDARD_INPUT = 0
STANDARD_STREAMS = (STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR)


class TrainingOutput:
    """A listener; use it as a context manager around the training, in which what the user's code prints is no data."""

    def __init__(self) -> None:
        self._terminal = _progress_on(progress_console())
        self._on_a_terminal = [descriptor for descriptor in STANDARD_STREAMS if os.isatty(descriptor)]
        self._log_file: IO[str] | None = None
        self._log: Progress | None = None
        self._redirected: tuple[int, ...] = ()
        self._descriptors: dict[int, tuple[int, ...]] = {}  # that lead to each stream, inside the block
        self._leaving = contextlib.ExitStack()  # of the block
        self._shown = True
        self._closed = False
        self._lock = threading.RLock()
        self._hung_up = threading.Event()

    @property
    def attached(self) -> bool:
        """Whether the process still has the streams that it began with."""
        return not self._redirected

    @property
    def result_is_read(self) -> bool:
        """Whether standard output still is what it was: a file or a pipe is, though the terminal has hung up."""
        return STANDARD_OUTPUT not in self._redirected

    def __enter__(self) -> TrainingOutput:
        with contextlib.ExitStack() as entering:
            streams = entering.enter_context(prints_to_standard_error())
            self._descriptors = {STANDARD_INPUT: (STANDARD_INPUT,), **streams}
            self._terminal.__enter__()
            threading.Thread(target=self._wait_for_hang_up, name="hang-up", daemon=True).start()
            self._leaving = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock, self._leaving:
            self._closed = True
            self._hung_up.set()  # lets the thread end
            if self._shown:
                self._terminal.__exit__(kind, error, trace)
            if isinstance(error, EdgeswarmError) and self.attached:  # else the report of it goes to the log
                self.log_line(f"error: {error.message}")
                self.log_line(f"remedy: {error.remedy}")
            if self._log_file is not None:
                with contextlib.suppress(OSError):  # a full disk
                    self._log_file.close()
            self._log = None

    def open_log(self, path: Path) -> None:
        """Write to this file from now on, too. Raises OSError."""
        with self._lock:
            self._log_file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
            self._log = _progress_on(file_console(self._log_file))
            self._redirect(self._redirected)

    def __call__(self, event: Event) -> None:
        with self._lock:
            if self._shown:
                self._terminal(event)
            if self._log is not None:
                self._log(event)

    def line(self, text: str) -> None:
        """A line of our own, to both."""
        with self._lock:
            if self._shown:
                self._terminal.line(text)
            self.log_line(text)

    def log_line(self, text: str) -> None:
        """A line for the log alone."""
        with self._lock:
            if self._log is not None:
                self._log.line(text)

    def hang_up(self) -> None:
        """The terminal is gone. For a signal handler: a thread does the rest."""
        self._hung_up.set()

    def let_go(self) -> None:
        """Go on without any of the streams that we began with."""
        self._let_go(STANDARD_STREAMS)

    def _wait_for_hang_up(self) -> None:
        self._hung_up.wait()
        with self._lock:
            if not self._closed and self._on_a_terminal:
                # A stream that is a file or a pipe stays: somebody reads it.
                self._let_go(tuple(self._on_a_terminal))
                self.log_line("the terminal hung up; the training goes on")

    def _let_go(self, streams: tuple[int, ...]) -> None:
        with self._lock:
            if self._shown and STANDARD_ERROR in streams:
                self._shown = False
                self._terminal.__exit__(None, None, None)
            self._redirected = streams
            self._redirect(streams)

    def _redirect(self, streams: tuple[int, ...]) -> None:
        """Point the streams at the log; at nothing while there is none, and always where they are read."""
        if not streams:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        nothing = os.open(os.devnull, os.O_RDWR)
        log = nothing if self._log_file is None else self._log_file.fileno()
        for number in streams:
            for descriptor in self._descriptors[number]:
                os.dup2(nothing if descriptor == STANDARD_INPUT else log, descriptor)
        os.close(nothing)


def _progress_on(console: Console) -> Progress:
    return Progress(console, show_plan=lambda event: show_plan_made(console, event))
