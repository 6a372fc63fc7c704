"""edgeswarm beside what people would run in its place, on the same emulated devices.

    python -m bench.matrix --folder DIR --cell C:100:mobilenet_v2      one cell; may be repeated
    python -m bench.matrix --folder DIR --small                        two devices, few settings, short rounds: minutes
    python -m bench.matrix --folder DIR --all                          the cells of CELLS: hours; goes on where it was broken off
    python -m bench.matrix --folder DIR --full                         A to D, 100 and 1000 Mbit/s, four models: days; likewise
    python -m bench.matrix --folder DIR --report                       the tables of what is there
    python -m bench.matrix --folder DIR --report --write               the tables and the plot in docs/

Each writes the tables and a plot as a page, too, DIR/page/matrix.md, where matplotlib is installed. What was measured is kept in
bench/results/matrix, which may be the folder.
Needs root and nothing else at work on the machine. One JSON file a cell; bench/matrix_cell.py says what is in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench.cell import Cell
from bench.matrix_cell import SMALL, CellMeasurement
from bench.matrix_ideal import ideal_table, read_nearness
from bench.matrix_on_bed import Effort
from bench.matrix_page import plot_rates, write_page
from bench.matrix_report import CellResult, peers_table, plans_table, read_cell
from bench.matrix_resources import read_resources, resources_table
from bench.measuring import Report, run_as_command, say, show_all
from bench.pages import BENCHMARKS_PAGE, MATRIX_PICTURE, table_and_verdicts, write_into
from edgeswarm.errors import EdgeswarmError

CELLS = (
    "C:100:mobilenet_v2",
    "A:100:mobilenet_v2",
    "B:100:mobilenet_v2",
    "C:1000:mobilenet_v2",
    "C:100:efficientnet_b1",
    "C:100:bert_small",
    "C:1000:bert_small",
    "D:100:resnet_50",
)
FULL = tuple(
    f"{environment}:{mbps}:{model}"
    for environment in "ABCD"
    for mbps in (100, 1000)
    for model in ("mobilenet_v2", "efficientnet_b1", "resnet_50", "bert_small")
)
SMALL_CELL = "pair:100:mobilenet_v2"
# In docs/benchmarks.md, in the order of the reports.
TABLES = ("peers", "ideal", "plans", "resources")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument(
        "--cell", action="append", type=Cell.given, default=[], help="ENVIRONMENT:MBPS:MODEL; may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="all cells, as far as they are missing")
    parser.add_argument(
        "--full", action="store_true", help="every environment, rate and model, as far as they are missing"
    )
    parser.add_argument("--small", action="store_true", help=f"the cell {SMALL_CELL}, one short run of each method")
    parser.add_argument("--repeats", type=int, default=Effort.repeats)
    parser.add_argument("--report", action="store_true", help="only the tables")
    parser.add_argument(
        "--page", type=Path, help="where the page with the tables and a plot is put; by default page in --folder"
    )
    parser.add_argument("--write", action="store_true", help="put the tables and the plot into docs/")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    if not given.report:
        named = [*(CELLS if given.all else ()), *(FULL if given.full else ())]
        asked = {cell: Effort(repeats=given.repeats) for cell in [*given.cell, *map(Cell.parse, named)]}
        asked.update({Cell.parse(SMALL_CELL): SMALL} if given.small else {})
        for cell, effort in asked.items():
            try:
                CellMeasurement(cell, given.folder, effort=effort).run()
            except (RuntimeError, EdgeswarmError) as error:
                failed.append(f"{cell.name}: {error}")
                say(failed[-1])
    documents = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))]
    documents = [document for document in documents if {"peers", "plans"} <= set(document)]
    cells_read = [read_cell(document) for document in documents]
    used = [resources for document in documents if (resources := read_resources(document)) is not None]
    near = [nearness for document in documents if (nearness := read_nearness(document)) is not None]
    tables = [peers_table(cells_read), ideal_table(near), plans_table(cells_read), resources_table(used)]
    if cells_read:
        _write_page(cells_read, tables, given.page or given.folder / "page")
    if given.write and cells_read:
        plot_rates(cells_read, MATRIX_PICTURE)
        for name, table in zip(TABLES, tables, strict=True):
            write_into(BENCHMARKS_PAGE, f"matrix {name}", table_and_verdicts(table))
    code = show_all(tables, as_json=given.json)
    for problem in failed:
        say(f"not measured: {problem}")
    return code or int(bool(failed))


def _write_page(cells: Sequence[CellResult], tables: Sequence[Report], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        say(f"Page: {write_page(cells, tables, folder)}")
    except ImportError:
        say("No page with a plot: matplotlib is not installed (pip install matplotlib).")


if __name__ == "__main__":
    run_as_command(main)
