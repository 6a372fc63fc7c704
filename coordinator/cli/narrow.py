"""A table where the terminal is wide enough, and plain lines where it would be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDEST = 10_000  # columns: the table as wide as it wants to be


def table_or_lines(console: Console, table: Table, lines: Sequence[str]) -> RenderableType:
    """The table, or these lines in its place; a line that is too long folds."""
    if console.measure(table, options=console.options.update(width=_WIDEST)).maximum <= console.width:
        return table
    from rich.text import Text

    return Text("\n".join(lines), overflow="fold")
