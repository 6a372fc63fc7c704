"""Where text goes: data to standard output, everything else to standard error. rich looks after NO_COLOR."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import click

from edgeswarm.errors import EdgeswarmError, ErrorCode

from ..lossy_stream import LossyStream

if TYPE_CHECKING:
    from rich.console import Console

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
_WIDTH_WITHOUT_TERMINAL = 160  # a table in a file or a pipe isn't cut to 80 columns


def data_console() -> Console:
    """For what the command was asked for."""
    return _console(sys.stdout, terminal=sys.stdout.isatty())


def progress_console() -> Console:
    """For progress, hints and warnings."""
    return _console(
        cast(TextIO, LossyStream(sys.stderr, errno.EIO, errno.EPIPE, errno.ENOSPC)), terminal=sys.stderr.isatty()
    )


def file_console(file: IO[str]) -> Console:
    """For a file that a person reads later: no colours, whatever the environment says. A full disk is no error."""
    from rich.console import Console

    return Console(
        file=cast(TextIO, LossyStream(file)),
        width=_WIDTH_WITHOUT_TERMINAL,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _console(file: TextIO, *, terminal: bool) -> Console:
    from rich.console import Console

    return Console(
        file=file, width=None if terminal else _WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False, emoji=False
    )


def draws_live(console: Console) -> bool:
    """Whether a line or a table can change in its place there: on a terminal that moves its cursor.

    rich takes a file for a terminal where FORCE_COLOR asks for colours, and on a dumb terminal it shows nothing alive.
    """
    return console.is_terminal and console.file.isatty() and not console.is_dumb_terminal


def print_json(document: dict[str, Any]) -> None:
    """The one JSON document of a command with --json."""
    click.echo(json.dumps(document, indent=2))


def write_json(path: Path, document: object, *, what: str) -> None:
    """what: for messages, as "trace". Raises EdgeswarmError (OUTPUT_FAILED) where the file can't be written."""
    try:
        path.write_text(json.dumps(document))
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The {what} {path} can't be written: {error.strerror}.",
            "Name a file in a folder that exists and has room.",
        ) from error


def hint(text: str = "") -> None:
    """A line for a person on standard error."""
    click.echo(text, err=True)


@contextlib.contextmanager
def prints_to_standard_error() -> Iterator[Mapping[int, tuple[int, ...]]]:
    """Around what runs the user's code: what a job file prints, and what programs that it starts write, stays out of the data
    that the command was asked for.

    Gives the descriptors that lead to standard output and to standard error meanwhile: output's own leads to error, too.
    """
    if sys.__stdout__ is None or sys.__stderr__ is None:
        # This process was started without one of them: the descriptor may be another file's by now.
        with contextlib.redirect_stdout(sys.stderr):
            yield {STANDARD_OUTPUT: (STANDARD_OUTPUT,), STANDARD_ERROR: (STANDARD_ERROR,)}
        return
    output = sys.stdout
    _flush(output)
    aside = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield {STANDARD_OUTPUT: (aside,), STANDARD_ERROR: (STANDARD_ERROR, STANDARD_OUTPUT)}
    finally:
        _flush(output)  # what was written to the stream itself meanwhile is no data either
        os.dup2(aside, STANDARD_OUTPUT)
        os.close(aside)


def _flush(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # nobody may read it any more, or the disk is full
        stream.flush()
