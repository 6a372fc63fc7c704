"""What a cell is called, where its files are, and what a run of it says."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from bench.cell import FIRST_ROUNDS, Cell, counted_rounds, measured_seconds, rounds_of_a_run


def test_names() -> None:
    cell = Cell.parse("C:100:mobilenet_v2")
    assert cell.name == "C-100-mobilenet_v2"
    assert Cell.named(cell.name) == cell
    with pytest.raises(ValueError, match="no such model: alexnet"):
        Cell.parse("C:100:alexnet")
    for text in ("C:100", "C:fast:mobilenet_v2"):
        with pytest.raises(ArgumentTypeError, match="is not ENVIRONMENT:MBPS:MODEL"):
            Cell.given(text)


def test_a_cell_that_was_broken_off_is_not_complete(tmp_path: Path) -> None:
    cell = Cell.parse("C:100:mobilenet_v2")
    assert not cell.is_complete(tmp_path)
    for complete in (False, True):
        cell.file(tmp_path).write_text(json.dumps({"complete": complete}))
        assert cell.is_complete(tmp_path) == complete


def test_the_first_rounds_do_not_count() -> None:
    assert measured_seconds({"round_seconds": [9.0, 9.0, 1.0, 2.0, 1.2]}) == 1.2


def test_rounds_on_a_slow_machine_do_not_count_while_others_are_left() -> None:
    told: dict[str, Any] = {
        "round_seconds": [9.0, 9.0, 5.0, 1.0, 2.0, 3.0, 4.0, 6.0],
        "slowness": [1.0, 1.0, 1.5, 1.0, 1.05, None, 1.1, 1.3],
    }
    assert sorted(counted_rounds(told)) == [1.0, 2.0, 3.0, 4.0]
    told["slowness"] = [1.0, 1.0, 1.5, 1.0, 1.2, 1.3, 1.4, 1.6]
    assert sorted(counted_rounds(told)) == [1.0, 2.0, 3.0, 4.0]
    assert measured_seconds(told) == 2.5


def test_short_rounds_are_repeated_until_they_say_something() -> None:
    assert [rounds_of_a_run(seconds) - FIRST_ROUNDS for seconds in (0.1, 6.0, 60.0)] == [14, 8, 4]
