"""`--plot FILE` of the commands that know how a round goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgeswarm.profile import PlanningInstance

    from ..simulator.simulation import Simulation

Command = TypeVar("Command", bound=Callable[..., Any])


def plot_option(command: Command) -> Command:
    """Gives `plot_path`; what could never be drawn is refused before anything is done."""
    return click.option(
        "--plot",
        "plot_path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=_checked,
        help="Draw a round's timeline into a .png, .svg or .pdf (needs `pip install 'edgeswarm[plot]'`).",
    )(command)


def draw_round(simulation: Simulation, instance: PlanningInstance, path: Path) -> None:
    """simulation: with its timeline. Raises EdgeswarmError (OUTPUT_FAILED) where the file can't be written."""
    from ..timeline_plot import draw_timeline

    draw_timeline(simulation, path, title=f"One round of {instance.name or 'the plan'}")


def _checked(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        from ..timeline_plot import check_plot

        check_plot(path)
        path = path.absolute()  # also where a job's code makes another folder the current one
    return path
