"""`edgeswarm stop`: ends a training of this machine, from another terminal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from edgeswarm.cli_errors import json_option
from edgeswarm.errors import EdgeswarmError, ErrorCode

from .console import hint, print_json
from .options import complete_job_ids, run_store

if TYPE_CHECKING:
    from ..run_store import Run

SECONDS_UNTIL_THE_HINT = 15.0
_KILL_SECONDS = 10.0


@click.command()
@click.argument("job", required=False, shell_complete=complete_job_ids(running_only=True))
@click.option("--now", is_flag=True, help="Kill it; nothing is saved, and the devices free themselves.")
@json_option()
def stop(*, job: str | None, now: bool, as_json: bool) -> None:
    """Stop a training, and wait until its devices are free.

    JOB is its id, the job's name, or the beginning of its id; without JOB, the one that runs. What it has in checkpoints
    stays, and `edgeswarm train JOB_FILE --resume` goes on from there.

    Exit code 0 when it has stopped, 1 where it had ended already, 2 where JOB could be several, 3 where there is no such
    training.

    \b
    Examples:
      edgeswarm stop                           where one training runs
      edgeswarm stop digits
      edgeswarm stop digits --now              where it doesn't react
    """
    from ..runs import RunState

    store = run_store()
    run = store.only_one_running() if job is None else store.find(job)
    record = run.record
    if run.state is not RunState.RUNNING:
        raise EdgeswarmError(
            ErrorCode.JOB_ENDED,
            f"{record.job_id} has ended already ({run.state.value}).",
            f"`edgeswarm status {record.job_id}` says how.",
        )
    if run.elsewhere:
        raise EdgeswarmError(
            ErrorCode.NO_SUCH_JOB, f"{record.job_id} runs on {record.host}, not here.", f"Stop it on {record.host}."
        )
    ended_by_itself = _kill(run) if now else _ask_to_stop(run)
    if as_json:
        print_json({"job_id": record.job_id, "devices": list(record.devices), "ended_by_itself": ended_by_itself})


def _ask_to_stop(run: Run) -> bool:
    """Waits as long as it takes; it has its devices to free, and says so in its end."""
    from ..processes import wait_for_end
    from ..run_store import read_run

    _signal(run, signal.SIGTERM)
    if not wait_for_end(run.record.process, timeout_seconds=SECONDS_UNTIL_THE_HINT):
        hint("It is still stopping. Ctrl-C leaves it to it; `edgeswarm stop --now` kills it.")
        wait_for_end(run.record.process, timeout_seconds=float("inf"))
    record = read_run(run.folder).record
    ended_by_itself = record.ended is not None
    if record.exit_code == 0:
        hint(f"{record.job_id} was done before it could be stopped; its result is in {record.folder}.")
    elif ended_by_itself:
        hint(f"{record.job_id} has stopped; its devices are free.")
    else:
        hint(f"{record.job_id} is gone; its devices free themselves within seconds.")
    return ended_by_itself


def _kill(run: Run) -> bool:
    """The devices notice by themselves: what they are reserved for is a lease."""
    from ..processes import wait_for_end
    from ..reserving import LEASE_SECONDS

    _signal(run, signal.SIGKILL)
    if not wait_for_end(run.record.process, timeout_seconds=_KILL_SECONDS):
        raise EdgeswarmError(
            ErrorCode.INTERNAL,
            f"The process {run.record.process.pid} of {run.record.job_id} was killed, and is still there.",
            "It waits for a disk or a driver; see `ps`, and look again.",
        )
    hint(f"{run.record.job_id} was killed; its devices free themselves within {2 * LEASE_SECONDS:.0f} s.")
    return False


def _signal(run: Run, number: int) -> None:
    from ..processes import send_signal

    try:
        send_signal(run.record.process, number)
    except PermissionError as error:
        raise EdgeswarmError(
            ErrorCode.JOB_ENDED,
            f"{run.record.job_id} (process {run.record.process.pid}) belongs to another user.",
            "Stop it as that user.",
        ) from error
