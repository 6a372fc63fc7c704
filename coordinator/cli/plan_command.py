"""`edgeswarm plan`: who would compute what."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeswarm.cli_errors import json_option
from edgeswarm.errors import EdgeswarmError, ErrorCode

from .console import data_console, print_json, prints_to_standard_error, progress_console, write_json
from .interrupts import cancelled_by_signals
from .options import (
    AN_INSTANCE_SAYS_IT,
    EXISTING_FILE,
    SAID_BY_AN_INSTANCE,
    FindArguments,
    find_options,
    job_options,
    operator_settings,
    refuse_beside,
    writable_file,
)
from .plot_option import draw_round, plot_option

if TYPE_CHECKING:
    from edgeswarm.plan import Plan
    from edgeswarm.profile import PlanningInstance

    from ..planner.alternatives import Alternative


@click.command(short_help="Say who would compute what, and how fast.")
@click.argument("job", type=EXISTING_FILE, required=False)
@click.option(
    "--instance",
    "instance_path",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Plan from an edgeswarm-planning-instance/1 file instead of a job; no device is asked.",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Also plan with a change: -DEVICE, +DEVICE or +CLASS (one more like it; a class by its board, as `edgeswarm "
    "devices` prints it), DEVICE.mbps=1000, DEVICE.memory=8GiB; commas join. Repeatable.",
)
@click.option(
    "--write-instance",
    "written_instance",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=writable_file,
    help="Write model, devices and links as they were measured, for --instance of `plan` and `simulate`.",
)
@plot_option
@job_options
@find_options
@json_option(help_text="print the plan as one edgeswarm-plan/1 document")
def plan(
    *,
    job: Path | None,
    instance_path: Path | None,
    changes: tuple[str, ...],
    written_instance: Path | None,
    plot_path: Path | None,
    planner: str,
    micro_batch: int | None,
    batch_size: int | None,
    seed: int | None,
    wire_dtype: str | None,
    fresh_profiles: bool,
    as_json: bool,
    **found: Any,
) -> None:
    """Say who would compute what, how fast, and what limits it; trains nothing.

    Exports the job's model, measures what isn't known yet of your devices and their links, and plans. The document of
    --json can be edited and given to `edgeswarm train --plan`.

    \b
    Examples:
      edgeswarm plan job.py
      edgeswarm plan job.py --planner pipeline
      edgeswarm plan job.py --wire-dtype bfloat16           what that would bring
      edgeswarm plan job.py --what-if -laptop --what-if nano-1.mbps=1000
      edgeswarm plan job.py --what-if "+NVIDIA Jetson Nano"
      edgeswarm plan job.py --json > plan.json
      edgeswarm plan job.py --write-instance instance.json
      edgeswarm plan --instance instance.json --plot timeline.svg
    """
    if (job is None) == (instance_path is None):
        raise click.UsageError("Give a job file or --instance FILE, one of the two.")
    if instance_path is not None:
        refuse_beside("--instance", *SAID_BY_AN_INSTANCE, why=AN_INSTANCE_SAYS_IT)
    from ..planner.what_if import check_changes

    for change in changes:
        check_changes(change)
    known: list[PlanningInstance] = []

    def measured(instance: PlanningInstance) -> None:
        known.append(instance)
        if written_instance is not None:
            from edgeswarm.profile_json import instance_to_json

            write_json(written_instance, instance_to_json(instance), what="instance")

    from ..planner.alternatives import of_changes, of_planners
    from ..planner.bound import round_bound_seconds
    from ..planner.planners import comparison_planners
    from ..planner.what_if import what_if

    try:
        if instance_path is not None:
            from ..planner.planners import make_plan
            from ..planner.prediction_error import with_relative_error

            instance = read_instance(instance_path)
            measured(instance)
            made = with_relative_error(instance, make_plan(instance, planner, micro_batch=micro_batch))
        else:
            assert job is not None
            made, instance = plan_job(
                job,
                found,
                measured=measured,
                planner=planner,
                micro_batch=micro_batch,
                batch_size=batch_size,
                seed=seed,
                wire_dtype=wire_dtype,
                fresh_profiles=fresh_profiles,
            )
    except EdgeswarmError as error:
        if error.code is ErrorCode.NO_PLAN_FITS and known and changes and not as_json:
            from .plan_view import print_alternatives

            # Whoever has too little memory asks for changes most of all; one that can't be made is told another time.
            with contextlib.suppress(EdgeswarmError):
                found_plans = of_changes(known[0], changes, planner=planner, micro_batch=micro_batch)
                print_alternatives(data_console(), "what if", None, found_plans)
        raise
    for change in changes:
        what_if(instance, change)  # what can't be made is said before anything is printed
    bound = round_bound_seconds(instance)

    def others() -> tuple[Alternative, ...]:
        return of_planners(instance, comparison_planners(made.planner), micro_batch=micro_batch)

    def changed() -> tuple[Alternative, ...]:
        return of_changes(instance, changes, planner=planner, micro_batch=micro_batch)

    if plot_path is not None:
        from ..simulator.simulate import simulate

        draw_round(simulate(instance, made, timeline=True), instance, plot_path)
    if as_json:
        more = {
            "bound_seconds": bound,
            "comparison": [other.to_json() for other in others()],
            "what_if": [other.to_json() for other in changed()],
        }
        print_json({**made.to_json(), **more})
        return
    from .plan_view import print_alternatives, print_bound, print_plan

    console = data_console()
    print_plan(console, made, instance)
    print_bound(console, made, bound)
    # The others may plan for much longer: who asked for the plan has it by now.
    print_alternatives(console, "planner", made, others())
    if changes:
        print_alternatives(console, "what if", made, changed())


def plan_job(
    job: Path,
    found: Mapping[str, Any],
    *,
    measured: Callable[[PlanningInstance], None] = lambda instance: None,
    **wanted: Any,
) -> tuple[Plan, PlanningInstance]:
    """A plan for a job file, and what it was made from; progress goes to standard error.

    found: what `find_options` pass. measured: as `make_plan_for_job` has it. wanted: fields of TrainOptions, a `plan_path` among
    them for a plan that is there.
    """
    from ..controller import make_plan_for_job
    from ..options import TrainOptions
    from .progress import Progress

    settings = operator_settings()
    options = TrainOptions(
        job_path=job,
        listen_address=settings.listen_address,
        data_port=settings.data_port,
        lost_seconds=settings.lost_seconds,
        discovery=FindArguments(**found).with_settings(settings),
        **wanted,
    )
    with (
        prints_to_standard_error(),
        cancelled_by_signals() as cancel,
        Progress(progress_console()) as progress,
    ):
        return make_plan_for_job(options, listener=progress, cancel=cancel, measured=measured)


def read_instance(path: Path) -> PlanningInstance:
    """Raises EdgeswarmError (INSTANCE_INVALID) for what isn't an instance."""
    from edgeswarm.profile_json import instance_from_json

    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EdgeswarmError(
            ErrorCode.INSTANCE_INVALID,
            f"{path} is not a JSON file: {error}.",
            "Give a file in the format edgeswarm-planning-instance/1.",
        ) from error
    return instance_from_json(document)
