"""What the predictions' report is made of: the pairs, the errors, the bad plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predictions import (
    CELLS,
    Cell,
    even_cuts,
    memory_errors,
    pairs,
    plans_of,
    rank_correlation,
    report,
)
from tests.coordinator.planner.instances import make_instance


def told(plan: str, predicted: float, rounds: list[float]) -> dict[str, Any]:
    return {
        "plan": plan,
        "predicted_seconds": predicted,
        "round_seconds": rounds,
        "predicted_bytes": {"a": 110, "b": 95},
        "peak_bytes": {"a": 100, "b": 100},
    }


CELL = "C-100-mobilenet_v2"
DOCUMENT = {
    "cell": CELL,
    "profile_seconds": {"nano-1": 200.0, "nx-1": 50.0, "again": 0.0},
    "runs": [
        told("good", 1.1, [9.0, 9.0, 1.0, 1.0, 1.2]),
        told("bad", 4.0, [9.0, 9.0, 5.0]),
        {"plan": "too large", "predicted_seconds": 1.0, "error": "worker-died: ..."},
        told("good", 1.1, [9.0, 9.0, 1.1]),
    ],
}


def test_each_plan_is_a_pair_and_the_second_run_shows_the_noise() -> None:
    assert list(pairs([DOCUMENT])) == [(CELL, "good", 1.1, 1.0, 1.1), (CELL, "bad", 4.0, 5.0, None)]


def test_memory_errors() -> None:
    assert sorted(memory_errors(told("good", 1.0, []))) == pytest.approx([-0.05, 0.1])


def test_ranks() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 21.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_the_report_says_what_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / f"{CELL}.json").write_text(json.dumps(DOCUMENT))
    table = report(tmp_path)
    assert table.rows[0] == (CELL, "good", "1.100", "1.000", "+10.0%", "1.100", "+10.0%", "-5% to +10%")
    assert [holds for _, holds in table.verdicts] == [False, True, True, False, False, True, False]


def test_a_cell_that_was_broken_off_is_not_complete(tmp_path: Path) -> None:
    cell = Cell.parse("C:100:mobilenet_v2")
    assert not cell.is_complete(tmp_path)
    cell.file(tmp_path).write_text(json.dumps({**DOCUMENT, "complete": False}))
    assert not cell.is_complete(tmp_path)
    cell.file(tmp_path).write_text(json.dumps({**DOCUMENT, "complete": True}))
    assert cell.is_complete(tmp_path)


def test_cells() -> None:
    assert Cell.parse("C:100:mobilenet_v2").name == "C-100-mobilenet_v2"
    assert len({Cell.parse(text).name for text in CELLS}) == len(CELLS)
    with pytest.raises(ValueError, match="no such model: alexnet"):
        Cell.parse("C:100:alexnet")


def test_the_bad_plan_is_worse_than_the_others() -> None:
    instance = make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1)
    plans = plans_of(instance)
    bad = even_cuts(instance)
    assert bad is not None
    assert bad.devices == ("b", "a")
    seconds = {name: plan.predicted.round_seconds for name, plan in plans.items() if plan.predicted is not None}
    assert seconds["even cuts, slowest first"] == max(seconds.values())


def test_a_bad_plan_that_does_not_fit_is_left_out() -> None:
    assert even_cuts(make_instance(memory_bytes=[500, 500])) is None
