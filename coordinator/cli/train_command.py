"""`edgeswarm train`: the whole way from a job file to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeswarm.cli_errors import json_option

from .console import data_console, print_json, prints_to_standard_error, progress_console
from .interrupts import cancelled_by_signals
from .options import EXISTING_FILE, FindArguments, find_options, job_options, operator_settings

if TYPE_CHECKING:
    from ..events import Event


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
    "--plan",
    "plan_path",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Follow this edgeswarm-plan/1 file; nothing is measured then.",
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
    plan_path: Path | None,
    parts: bool,
    planner: str,
    micro_batch: int | None,
    batch_size: int | None,
    seed: int | None,
    fresh_profiles: bool,
    as_json: bool,
    **found: Any,
) -> None:
    """Train the job over your devices and write the result.

    The result is a folder with model.safetensors (plain PyTorch loads it), the optimizer's state, metrics.json and
    plan.json. It is written at the end, whole; a training that fails or is stopped with Ctrl-C leaves none, and
    frees the devices.

    \b
    Examples:
      edgeswarm train job.py
      edgeswarm train job.py --epochs 20 --output runs/first
      edgeswarm train job.py --plan plan.json --parts
      edgeswarm train job.py --device nano-1 --device nano-2
    """
    from ..controller import train as run
    from ..options import TrainOptions
    from .parts import PartsOfRounds, parts_table
    from .plan_view import show_plan_made
    from .progress import Progress

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
        fresh_profiles=fresh_profiles,
        listen_address=settings.listen_address,
        discovery=FindArguments(**found).with_settings(settings),
    )
    console = progress_console()
    parts_of_rounds = PartsOfRounds()
    with (
        cancelled_by_signals() as cancel,
        Progress(console, show_plan=lambda event: show_plan_made(console, event)) as progress,
        prints_to_standard_error(),
    ):

        def listen(event: Event) -> None:
            progress(event)
            parts_of_rounds(event)

        result = run(options, listener=listen, cancel=cancel)
    if as_json:
        document = {"folder": str(result.folder), "plan": result.plan.to_json(), "metrics": dict(result.metrics)}
        print_json({**document, "parts": parts_of_rounds.to_json()} if parts else document)
        return
    if parts:
        data_console().print(parts_table(parts_of_rounds.means()))
    click.echo(str(result.folder))
