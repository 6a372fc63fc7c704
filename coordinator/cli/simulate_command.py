"""`edgeswarm simulate`: how a round of training with a plan goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeswarm.cli_errors import json_option

from .console import data_console, print_json, write_json
from .options import (
    AN_INSTANCE_SAYS_IT,
    EXISTING_FILE,
    SAID_BY_AN_INSTANCE,
    find_options,
    job_options,
    refuse_beside,
    writable_file,
)
from .plan_command import plan_job, read_instance
from .plot_option import draw_round, plot_option


@click.command(short_help="Say how a round with a plan goes, event by event.")
@click.argument("job", type=EXISTING_FILE, required=False)
@click.option(
    "--instance",
    "instance_path",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Model and devices from an edgeswarm-planning-instance/1 file instead of a job; no device is asked.",
)
@click.option(
    "--plan",
    "plan_path",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Simulate this edgeswarm-plan/1 file; by default the plan that `edgeswarm plan` makes.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=writable_file,
    help="Write the round as a trace for ui.perfetto.dev or chrome://tracing.",
)
@plot_option
@job_options
@find_options
@json_option(help_text="print the simulation as one document")
def simulate(
    *,
    job: Path | None,
    instance_path: Path | None,
    plan_path: Path | None,
    trace_path: Path | None,
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
    """Say how a round of training with a plan goes, event by event; trains nothing.

    Simulates the schedule that workers follow, with measured times: links and network cards that transfers share, samples
    that come ahead of need, the all-reduce beside the last backward, the optimizer's step.

    \b
    Examples:
      edgeswarm simulate job.py
      edgeswarm simulate job.py --plan plan.json --trace round.json
      edgeswarm simulate --instance instance.json --plan plan.json
      edgeswarm simulate --instance instance.json --planner pipeline --plot round.svg
    """
    if (job is None) == (instance_path is None):
        raise click.UsageError("Give a job file or --instance FILE, one of the two.")
    if plan_path is not None:
        refuse_beside("--plan", "planner", "micro_batch", "devices", why="the plan is there, with its devices")
    if instance_path is not None:
        refuse_beside("--instance", *SAID_BY_AN_INSTANCE, why=AN_INSTANCE_SAYS_IT)
        from ..plan_by_hand import named_as_in_instance, read_plan
        from ..planner.planners import make_plan

        instance = read_instance(instance_path)
        if plan_path is None:
            plan = make_plan(instance, planner, micro_batch=micro_batch)
        else:
            plan = named_as_in_instance(read_plan(plan_path), instance.device_names)
    else:
        assert job is not None
        plan, instance = plan_job(
            job,
            found,
            plan_path=plan_path,
            planner=planner,
            micro_batch=micro_batch,
            batch_size=batch_size,
            seed=seed,
            wire_dtype=wire_dtype,
            fresh_profiles=fresh_profiles,
        )
    from ..simulator.simulate import simulate as simulated

    simulation = simulated(instance, plan, timeline=True)
    if trace_path is not None:
        from ..simulator.trace import chrome_trace

        write_json(trace_path, chrome_trace(simulation), what="trace")
    if plot_path is not None:
        draw_round(simulation, instance, plot_path)
    from .simulation_view import print_simulation, simulation_document

    if as_json:
        print_json(simulation_document(simulation, plan))
    else:
        print_simulation(data_console(), simulation, plan, instance)
