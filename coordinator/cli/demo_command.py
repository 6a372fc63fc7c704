"""`edgeswarm demo`: the whole thing on this machine alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edgeswarm.cli_errors import json_option
from edgeswarm.errors import ExitCode

from .console import print_json, progress_console
from .interrupts import cancelled_by_signals


@click.command(short_help="See it work, on this machine alone.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keep the cluster's folder and the result here; must not exist yet, or be empty.",
)
@json_option()
def demo(keep: Path | None, as_json: bool) -> None:
    """Train a CNN on handwritten digits with three agents of this machine.

    Makes a throw-away cluster in a folder of its own, starts three agents of unequal speed, finds them, measures them,
    plans, trains, and tests the result in plain PyTorch. Takes a minute or two; nothing is left behind. Exit code 1 if
    the model gets less than 95 % of the test images right.

    \b
    Examples:
      edgeswarm demo
      edgeswarm demo --keep digits       then look at digits/result
    """
    from ..demo.demo import LEAST_ACCURACY, run_demo

    with cancelled_by_signals("the agents of the demo are being ended") as cancel:
        outcome = run_demo(progress_console(), keep=keep, cancel=cancel)
    if as_json:
        print_json(outcome.to_json())
    else:
        click.echo(f"test accuracy {100 * outcome.accuracy:.1f} % after {outcome.seconds:.0f} s")
    if outcome.accuracy < LEAST_ACCURACY:
        sys.exit(ExitCode.ERROR)
