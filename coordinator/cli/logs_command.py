"""`edgeswarm logs`: what a training said, and says."""

from __future__ import annotations

import collections
import contextlib
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from edgeswarm.errors import EdgeswarmError, ErrorCode

from .options import complete_job_ids, run_store

if TYPE_CHECKING:
    from ..run_store import Run, RunStore

DEFAULT_LINES = 50
_LOOK_EVERY_SECONDS = 0.2
_LAST_WORDS_SECONDS = 1.0  # from the end in the record to that of the process, which still says why it ended


@click.command()
@click.argument("job", required=False, shell_complete=complete_job_ids(running_only=False))
@click.option("--follow", "-f", is_flag=True, help="Go on with what it says, until it ends or Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help=f"That many of the last lines, 0 for none of before.  [default: {DEFAULT_LINES}]",
)
@click.option("--all", "all_lines", is_flag=True, help="All that it said.")
def logs(*, job: str | None, follow: bool, lines: int | None, all_lines: bool) -> None:
    """Print what a training said, in the background or in another terminal.

    JOB is its id, the job's name, or the beginning of its id; without JOB, the one that was started last.

    \b
    Examples:
      edgeswarm logs
      edgeswarm logs digits --follow
      edgeswarm logs digits --lines 5
      edgeswarm logs digits --all > training.txt
    """
    if all_lines and lines is not None:
        raise click.UsageError("Give --all or --lines, one of the two.")
    store = run_store()
    run = _newest(store) if job is None else store.find(job)
    path = run.log_path
    try:
        opened = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.CONFIG, f"{path} can't be read: {error.strerror or error}.", "Look into that folder."
        ) from error
    with opened as log, contextlib.suppress(KeyboardInterrupt):  # that is how one leaves
        kept = None if all_lines else DEFAULT_LINES if lines is None else lines
        for line in collections.deque(log, maxlen=kept):
            click.echo(line, nl=False)
        if follow:
            _follow(log, run.folder)


def _newest(store: RunStore) -> Run:
    run = next(iter(store.all()), None)
    if run is None:
        raise EdgeswarmError(
            ErrorCode.NO_SUCH_JOB, "No training is known here.", "Start one with `edgeswarm train JOB_FILE`."
        )
    return run


def _follow(log: IO[str], folder: Path) -> None:
    """Print what comes, until the training is over and all of it is printed."""
    from ..processes import wait_for_end
    from ..run_store import read_run
    from ..runs import RunState

    while True:
        run = read_run(folder)
        over = run.state is not RunState.RUNNING  # asked before the last look at the file
        if over:
            wait_for_end(run.record.process, timeout_seconds=_LAST_WORDS_SECONDS)
        for line in log:
            click.echo(line, nl=False)
        if over:
            return
        time.sleep(_LOOK_EVERY_SECONDS)
