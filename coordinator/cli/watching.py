"""`--watch`: a table again and again, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from edgeswarm.errors import EdgeswarmError, ErrorCode

from .console import draws_live

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def check_watch(*, watch: bool, as_json: bool) -> None:
    """Raises click's UsageError where both are wanted."""
    if watch and as_json:
        raise click.UsageError("--watch is for a person, --json for a program: give one of the two.")


def show_again_and_again(
    console: Console, make: Callable[[], RenderableType], *, every_seconds: float, times: int | None = None
) -> None:
    """On a terminal the table changes in its place; elsewhere each one is printed below the one before.

    Ctrl-C ends it, as does the EdgeswarmError (INTERRUPTED) that `make` raises then. times: so often; None for ever.
    """
    from rich.live import Live

    try:
        if not draws_live(console):
            for _ in _rounds(every_seconds, times):
                console.print(make())
            return
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            for _ in _rounds(every_seconds, times):
                live.update(make(), refresh=True)
    except KeyboardInterrupt:
        return
    except EdgeswarmError as error:
        if error.code is not ErrorCode.INTERRUPTED:
            raise


def _rounds(every_seconds: float, times: int | None) -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
        if number == times:
            return
        time.sleep(every_seconds)
