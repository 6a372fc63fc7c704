"""`edgeswarm train`: the whole way from a job file to a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeswarm.cli_errors import json_option, report
from edgeswarm.errors import EdgeswarmError

from .console import data_console, print_json
from .interrupts import cancelled_by_signals
from .options import (
    EXISTING_FILE,
    FindArguments,
    find_options,
    is_given,
    job_options,
    log_folder,
    operator_settings,
    refuse_beside,
)

if TYPE_CHECKING:
    from ..controller import TrainResult
    from ..events import Event
    from ..options import TrainOptions
    from .detaching import Announcement
    from .parts import PartsOfRounds


@click.command()
@click.argument("job", type=EXISTING_FILE)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the result goes; must not exist yet.  [default: edgeswarm-out-NAME]",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), metavar="NUMBER", help="Passes over the data set, in place of the job's."
)
@click.option(
    "--resume", is_flag=True, help="Go on from the last checkpoint of a training of this job that did not end."
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    metavar="ROUNDS",
    help="Write a checkpoint after so many rounds.  [default: as often as costs at most 2 % of the time]",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Come back when the first round is done; the training goes on in the background.",
)
@click.option(
    "--plan",
    "plan_path",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Follow this edgeswarm-plan/1 file; nothing is measured then.",
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write TensorBoard's event files there, too.",
)
@click.option(
    "--keep-shares",
    is_flag=True,
    help="Leave the samples shared as planned, whatever speed the devices show.",
)
@click.option("--parts", is_flag=True, help="Print where each worker's round time went.")
@job_options
@find_options
@json_option()
def train(
    *,
    job: Path,
    output: Path | None,
    epochs: int | None,
    resume: bool,
    checkpoint_every: int | None,
    detach: bool,
    plan_path: Path | None,
    tensorboard: Path | None,
    keep_shares: bool,
    parts: bool,
    planner: str,
    micro_batch: int | None,
    batch_size: int | None,
    seed: int | None,
    wire_dtype: str | None,
    fresh_profiles: bool,
    as_json: bool,
    **found: Any,
) -> None:
    """Train the job over your devices and write the result.

    The result is a folder with model.safetensors (plain PyTorch loads it), the optimizer's state, metrics.json and
    plan.json. It is written at the end, whole. Until then checkpoints lie beside it, in a folder whose name ends in
    .unfinished: a training that fails, or that you stop with Ctrl-C, frees the devices, and --resume goes on from there.

    When the devices turn out faster or slower than they were measured, their shares of the samples follow, where that saves
    more time than it takes. With --keep-shares, or a plan of your own, they stay; the same plan then gives the same bits.

    A training whose terminal is closed goes on. `edgeswarm status`, `edgeswarm logs` and `edgeswarm stop` find it again,
    as they find one that was started with --detach.

    \b
    Examples:
      edgeswarm train job.py
      edgeswarm train job.py --epochs 20 --output runs/first
      edgeswarm train job.py --detach                       leave it in the background
      edgeswarm train job.py --resume                       go on after a failure
      edgeswarm train job.py --checkpoint-every 100         lose no more than 100 rounds
      edgeswarm train job.py --plan plan.json --parts       see where the time goes
      edgeswarm train job.py --wire-dtype bfloat16          on a slow network
      edgeswarm train job.py --tensorboard runs/logs
      edgeswarm train job.py --batch-size 64 --seed 1       try other settings
      edgeswarm train job.py --device nano-1 --device nano-2
    """
    from ..options import TrainOptions

    if plan_path is not None:
        refuse_beside(
            "--plan",
            *("planner", "micro_batch", "fresh_profiles", "devices"),
            why="the plan is there, with its devices, and nothing is measured",
        )
    settings = operator_settings()
    options = TrainOptions(
        job_path=job,
        output=output,
        plan_path=plan_path,
        planner=planner,
        micro_batch=micro_batch,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        wire_dtype=wire_dtype,
        fresh_profiles=fresh_profiles,
        listen_address=settings.listen_address,
        data_port=settings.data_port,
        lost_seconds=settings.lost_seconds,
        resume=resume,
        new_plan=is_given("planner"),
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        keep_shares=keep_shares,
        discovery=FindArguments(**found).with_settings(settings),
    )
    announcement = None
    if detach:
        from .detaching import go_to_background

        announcement = go_to_background(as_json=as_json)
    from .parts import PartsOfRounds, parts_table

    parts_of_rounds = PartsOfRounds()
    result, is_read = _train(options, parts_of_rounds, announcement)
    if as_json and is_read:
        document = {"folder": str(result.folder), "plan": result.plan.to_json(), "metrics": dict(result.metrics)}
        print_json({**document, "parts": parts_of_rounds.to_json()} if parts else document)
        return
    if parts:
        data_console().print(parts_table(parts_of_rounds.means()))
    click.echo(os.fsencode(result.folder))  # a folder's name needn't be text


def _train(options: TrainOptions, parts: PartsOfRounds, announcement: Announcement | None) -> tuple[TrainResult, bool]:
    """The result, and whether standard output still is what the process began with.

    announcement: of a training that goes to the background after its first round.
    """
    from edgeswarm.config import Folders

    from ..controller import train as run
    from ..events import RoundDone
    from ..run_store import LOG_FILE, RunStore
    from .progress import epochs_line
    from .recording import Recording, recorded
    from .training_output import TrainingOutput

    output = TrainingOutput()
    recording = Recording(
        RunStore.of(Folders.find()),
        options,
        begun=lambda folder: output.open_log(folder / LOG_FILE),
        warn=lambda problem: output.line(f"warning: {problem}"),
        must_be_kept=announcement is not None,
    )

    def listen(event: Event) -> None:
        recording(event)
        output(event)
        parts(event)
        if isinstance(event, RoundDone) and announcement is not None and announcement.pending:
            output.let_go()
            announcement.tell(recording.told())
        if not output.attached:
            recording.detached()

    try:
        with cancelled_by_signals(hang_up=output.hang_up) as cancel, output, recorded(recording):
            result = run(options, listener=listen, cancel=cancel)
            epochs = epochs_line(result.summary)
            if epochs is not None:
                output.line(f"  {epochs}")
    except EdgeswarmError as error:
        if output.attached:
            raise
        code = report(error, log_folder=log_folder)  # for whoever reads the log, --json or not
        raise click.exceptions.Exit(code) from error
    return result, output.result_is_read
