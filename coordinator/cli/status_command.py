"""`edgeswarm status`: which trainings run, and how those of the last day ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from edgeswarm.cli_errors import json_option

from .console import data_console, hint, print_json
from .options import complete_job_ids, run_store
from .watching import check_watch, show_again_and_again

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..run_store import Run, RunStore

RECENT_SECONDS = 24 * 3600.0
WATCH_EVERY_SECONDS = 1.0
_HEADING_WIDTH = 12


@click.command()
@click.argument("job", required=False, shell_complete=complete_job_ids(running_only=False))
@click.option("--all", "all_runs", is_flag=True, help="All trainings that are known, not those of the last day alone.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@json_option()
def status(*, job: str | None, all_runs: bool, watch: bool, as_json: bool) -> None:
    """List the trainings that run, and those of the last day with how they ended.

    With JOB, all that is known of one: JOB is its id, the job's name, or the beginning of its id. Only what was started
    on this machine, by you, is known here. Exit code 3 where there is no such JOB.

    \b
    Examples:
      edgeswarm status
      edgeswarm status --watch                 until Ctrl-C
      edgeswarm status digits                  more about one
      edgeswarm status --all --json
    """
    check_watch(watch=watch, as_json=as_json)
    store = run_store()
    if as_json:
        print_json(_document(store, job, all_runs=all_runs))
        return
    console = data_console()
    if watch:
        show_again_and_again(console, lambda: _view(store, job, all_runs=all_runs), every_seconds=WATCH_EVERY_SECONDS)
        return
    if job is None and not _listed(store, all_runs=all_runs):
        hint("No training runs, and none ran in the last day." if not all_runs else "No training is known here.")
    else:
        console.print(_view(store, job, all_runs=all_runs), soft_wrap=True)
    for problem in store.unreadable:
        hint(f"warning: {problem}")


def _listed(store: RunStore, *, all_runs: bool) -> list[Run]:
    from ..runs import RunState

    now = time.time()
    return [
        run
        for run in store.all()
        if all_runs or run.state is RunState.RUNNING or now - run.record.updated < RECENT_SECONDS
    ]


def _view(store: RunStore, job: str | None, *, all_runs: bool) -> RenderableType:
    from rich.text import Text

    from .run_view import details, runs_view

    now = time.time()
    if job is None:
        runs = _listed(store, all_runs=all_runs)
        return runs_view(data_console(), runs, now=now) if runs else Text("No training runs.")
    lines = [f"{heading:<{_HEADING_WIDTH}}{text}" for heading, text in details(store.find(job), now=now)]
    return Text("\n".join(lines), overflow="fold")


def _document(store: RunStore, job: str | None, *, all_runs: bool) -> dict[str, object]:
    from .run_view import run_to_json

    if job is not None:
        return run_to_json(store.find(job))
    return {"runs": [run_to_json(run) for run in _listed(store, all_runs=all_runs)]}
