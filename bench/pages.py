"""Tables in pages of docs/: each stands between two marks, and a measurement puts a new one there.

<!-- NAME: begin -->
| ... |
<!-- NAME: end -->
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.measuring import Report

_DOCS = Path(__file__).resolve().parents[1] / "docs"
PLANNERS_PAGE, BENCHMARKS_PAGE = _DOCS / "planners.md", _DOCS / "benchmarks.md"
SCALING_PICTURE, MATRIX_PICTURE = _DOCS / "scaling.svg", _DOCS / "matrix.svg"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text, the others numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table_and_verdicts(report: Report) -> str:
    """What stands below a heading, without how it was measured."""
    verdicts = [f"- {'holds' if holds else '**does not hold**'}: {what}" for what, holds in report.verdicts]
    below = [*verdicts, *(f"- remark: {remark}" for remark in report.remarks)]
    return "\n\n".join([markdown_table(report.columns, report.rows), "\n".join(below)]).rstrip()


def put_into(page: str, name: str, table: str) -> str:
    """The page with the table between the marks of that name. Raises ValueError where they are missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def write_into(page: Path, name: str, table: str) -> None:
    """`put_into` for a page's file."""
    page.write_text(put_into(page.read_text(), name, table))
