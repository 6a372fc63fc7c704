"""The matrix as a page: its tables, and a plot of the rates, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.estimate import OURS
from bench.matrix_report import SERVED, CellResult
from bench.measuring import Report
from bench.pages import table_and_verdicts

PAGE, PLOT = "matrix.md", "matrix.svg"
_WIDTH_INCHES, _HEIGHT_INCHES = 1.5, 4.0  # the former of each cell
_COLOURS = ("tab:blue", "tab:gray", "tab:orange", "tab:green", "tab:red", "tab:purple")


def write_page(cells: Sequence[CellResult], tables: Sequence[Report], folder: Path) -> Path:
    """Writes the page and its plot into `folder`. Raises ImportError where matplotlib is missing."""
    plot_rates(cells, folder / PLOT)
    sections = [_section(table) for table in tables]
    (folder / PAGE).write_text("\n\n".join(["# edgeswarm beside its peers", f"![rates]({PLOT})", *sections]) + "\n")
    return folder / PAGE


def _section(table: Report) -> str:
    return f"## {table.title}\n\n{table.how}\n\n{table_and_verdicts(table)}"


def plot_rates(cells: Sequence[CellResult], path: Path) -> None:
    """Samples per second of edgeswarm, also with served samples, and of each peer, as parts of the ideal: a group of bars for
    each cell, the median with the least and the most of the repeats. The same figures give the same file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods = [OURS, SERVED, *dict.fromkeys(peer for cell in cells for peer in cell.peers)]
    width = 0.8 / len(methods)
    size = (3 + _WIDTH_INCHES * len(cells), _HEIGHT_INCHES)
    with matplotlib.rc_context({"svg.hashsalt": "edgeswarm"}):
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        for place, method in enumerate(methods):
            shift = (place - (len(methods) - 1) / 2) * width
            found = {at: cell.of_ideal(method) for at, cell in enumerate(cells) if method in cell.measured.rates}
            axes.bar(
                [at + shift for at in found],
                [part.median for part in found.values()],
                width=width,
                yerr=(
                    [part.median - part.least for part in found.values()],
                    [part.most - part.median for part in found.values()],
                ),
                label=method,
                color=_COLOURS[place % len(_COLOURS)],
                ecolor="0.3",
            )
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(cells)), [_in_two_lines(cell.cell) for cell in cells])
        axes.set_ylabel("of what the devices do alone, in all")
        axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _in_two_lines(cell: str) -> str:
    """Its devices and links above its model."""
    devices, _, model = cell.rpartition("-")
    return f"{devices}\n{model}"
