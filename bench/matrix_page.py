"""The matrix as a page: its tables, and a plot of the rates, in one folder."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.estimate import OURS
from bench.matrix_report import CellResult
from bench.measuring import Report
from bench.pages import table_and_verdicts

PAGE, PLOT = "matrix.md", "matrix.png"
_WIDTH_INCHES, _HEIGHT_INCHES = 2.2, 4.0
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
    """Samples per second of edgeswarm and of each peer as measured, as parts of the ideal: a group of bars for each cell, the
    median with the least and the most of the repeats.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods = [OURS, *dict.fromkeys(peer for cell in cells for peer in cell.peers)]
    figure, axes = pyplot.subplots(figsize=(3 + _WIDTH_INCHES * len(cells), _HEIGHT_INCHES), layout="constrained")
    width = 0.8 / len(methods)
    for place, method in enumerate(methods):
        found = [[rate / cell.ideal for rate in cell.measured.own(method).values()] or [0.0] for cell in cells]
        parts = [statistics.median(each) for each in found]
        spread = [
            [part - min(each) for part, each in zip(parts, found, strict=True)],
            [max(each) - part for part, each in zip(parts, found, strict=True)],
        ]
        positions = [index + (place - (len(methods) - 1) / 2) * width for index in range(len(cells))]
        axes.bar(
            positions,
            parts,
            width=width,
            yerr=spread,
            label=method,
            color=_COLOURS[place % len(_COLOURS)],
            ecolor="0.3",
        )
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(cells)), [cell.cell for cell in cells])
    axes.set_ylabel("of what the devices do alone, in all")
    axes.legend(frameon=False, fontsize="small", ncols=2)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
