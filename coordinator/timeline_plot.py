"""The timeline of a simulated round as a picture: `--plot FILE`. Needs matplotlib, the extra `edgeswarm[plot]`.

nano-1   compute   |F0|F1|F2|   |B0|  |B1| ...       a colour for each kind, darker for later micro-batches
         egress       |=|=|=|      |=|
laptop   ingress        |=|=|=|
         compute        |F0|B0|F1|B1| ...
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode

from .simulator.log import TIED_SUM
from .simulator.simulation import Simulation, TimelineEvent

SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    "weights": "#eeca3b",
    "step": "#54a24b",
    "all-reduce": "#b279a2",
    TIED_SUM: "#e377c2",
    "samples": "#9d9d9d",
}
_TRACKS = ("compute", "all-reduce", "egress", "ingress")
_INCHES_PER_TRACK = 0.28


def check_plot(path: Path) -> None:
    """Whether a picture could be drawn to this file. Raises EdgeswarmError: MISSING_EXTRA, CONFIG, OUTPUT_FAILED."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EdgeswarmError(
            ErrorCode.MISSING_EXTRA,
            "--plot needs the package matplotlib, which is not installed.",
            "Install it: pip install 'edgeswarm[plot]'.",
        )
    if path.suffix not in SUFFIXES:
        raise EdgeswarmError(
            ErrorCode.CONFIG, f"--plot {path} is no kind of picture.", f"End its name with {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise _unwritable(path, "there is no such folder")


def draw_timeline(simulation: Simulation, path: Path, *, title: str) -> None:
    """Draws the events of a simulation that was made with its timeline. Raises EdgeswarmError as `check_plot` does."""
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = _rows(simulation.events)
    figure = Figure(figsize=(12.0, 1.4 + _INCHES_PER_TRACK * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    last_micro_batch = max((event.micro_batch for event in simulation.events), default=0)
    for place, row in enumerate(rows):
        events = [event for event in simulation.events if (event.device, event.track) == row]
        axes.broken_barh(
            [(event.start_seconds, event.end_seconds - event.start_seconds) for event in events],
            (place - 0.4, 0.8),
            facecolors=[_COLOURS.get(event.kind, "#555555") for event in events],
            # Neighbours of one kind can be told apart.
            alpha=[0.55 + 0.45 * max(event.micro_batch, 0) / max(last_micro_batch, 1) for event in events],
            edgecolor="white",
            linewidth=0.2,
        )
    axes.set_yticks(range(len(rows)), [f"{device or 'data source'}  {track}" for device, track in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the round began")
    axes.set_title(title, loc="left")
    axes.axvline(simulation.round_seconds, color="black", linewidth=0.8)
    kinds = [kind for kind in _COLOURS if any(event.kind == kind for event in simulation.events)]
    axes.legend(
        handles=[Patch(color=_COLOURS[kind], label=kind) for kind in kinds],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
    )
    try:
        figure.savefig(path)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _rows(events: Sequence[TimelineEvent]) -> list[tuple[str, str]]:
    """(device, track), devices in the order in which they first appear, the data source last."""
    devices = sorted(dict.fromkeys(event.device for event in events), key=lambda device: device == "")
    tracks = {(event.device, event.track) for event in events}
    return [(device, track) for device in devices for track in _TRACKS if (device, track) in tracks]


def _unwritable(path: Path, why: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.OUTPUT_FAILED, f"The picture can't be written to {path}: {why}.", "Choose another file with --plot."
    )
