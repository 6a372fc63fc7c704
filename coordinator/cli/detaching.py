"""`train --detach`: the training goes on in a process of its own, and this one waits until its first round is done.

    edgeswarm train --detach
        │ fork
        ├── foreground   forwards Ctrl-C, waits ────── first round: says where it is, exit code 0
        │                                       └───── ended before: the same exit code
        └── background   own session, no input; shows its progress on the terminal that it inherited, and lets it go
                         after the first round

Forked before anything heavy is loaded and before there are threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode

from .console import hint, print_json

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Announcement:
    """What the background tells the foreground, once. descriptor: the pipe to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @property
    def pending(self) -> bool:
        return self._descriptor is not None

    def tell(self, document: dict[str, Any]) -> None:
        """The training is under way. May be told once; the foreground may be gone."""
        assert self._descriptor is not None, "told once"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._descriptor, json.dumps(document).encode() + b"\n")
        os.close(self._descriptor)
        self._descriptor = None


def go_to_background(*, as_json: bool) -> Announcement:
    """Returns in the background. The foreground leaves from here by click's Exit, or by the error that it tells.

    Raises EdgeswarmError (INTERNAL) in the foreground where a signal ended the training before its first round.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return Announcement(writer)
    os.close(writer)
    raise click.exceptions.Exit(_watch(child, reader, as_json=as_json))


def _watch(child: int, reader: int, *, as_json: bool) -> int:
    """The exit code of the foreground."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    with os.fdopen(reader, "rb") as pipe:
        # A line and no more: processes that the job's code has forked hold the pipe's other end for as long as they live.
        told = pipe.readline()
    if told:
        _say_where_it_is(json.loads(told), as_json=as_json)
        return ExitCode.DONE
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise EdgeswarmError(
            ErrorCode.INTERNAL,
            f"The training was ended by {signal.Signals(-code).name} before its first round was done.",
            "If nobody did that, this machine ran out of memory: free some, and start it again.",
        )
    return code


def _say_where_it_is(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(document["job_id"])
    job = document["job_id"]
    hint("It trains in the background now.")
    hint(f"  edgeswarm status {job}")
    hint(f"  edgeswarm logs {job} --follow")
    hint(f"  edgeswarm stop {job}")
