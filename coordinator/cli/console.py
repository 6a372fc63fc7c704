"""Where text goes: data to standard output, everything else to standard error. rich looks after NO_COLOR."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 160  # a table in a file or a pipe isn't cut to 80 columns


def data_console() -> Console:
    """For what the command was asked for."""
    return _console(stderr=False, terminal=sys.stdout.isatty())


def progress_console() -> Console:
    """For progress, hints and warnings."""
    return _console(stderr=True, terminal=sys.stderr.isatty())


def _console(*, stderr: bool, terminal: bool) -> Console:
    from rich.console import Console

    return Console(
        stderr=stderr, width=None if terminal else _WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False, emoji=False
    )


def print_json(document: dict[str, Any]) -> None:
    """The one JSON document of a command with --json."""
    click.echo(json.dumps(document, indent=2))


def hint(text: str = "") -> None:
    """A line for a person on standard error."""
    click.echo(text, err=True)


@contextlib.contextmanager
def prints_to_standard_error() -> Iterator[None]:
    """Around what runs the user's code: a print() in a job file stays out of the data that the command was asked for."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
