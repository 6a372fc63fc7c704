"""What the predictions' report is made of: the pairs, the errors, what holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predictions_report import instances_of, pairs_of, rank_correlation, report
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.planner.planners import make_plan
from tests.coordinator.planner.instances import make_instance

CELL = "C-100-mobilenet_v2"
QUICK, SLOW = make_instance((1.0, 1.0)), make_instance((3.0, 3.0))
PLAN = make_plan(QUICK, "pipeline")
assert PLAN.predicted is not None
SECONDS = PLAN.predicted.round_seconds


def told(rounds: list[float], *, repeat: int = 0, more_memory: float = 1.0) -> dict[str, Any]:
    assert PLAN.predicted is not None
    peaks = {name: more_memory * held for name, held in PLAN.predicted.memory_bytes.items()}
    return {"plan": "good", "repeat": repeat, "round_seconds": [99.0, 99.0, *rounds], "peak_bytes": peaks}


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    seconds = {"nano-1": 200.0, "nx-1": 50.0, "again": 0.0}
    return {
        "cell": CELL,
        "profilings": [{"seconds": seconds, "instance": instance_to_json(each)} for each in (QUICK, SLOW)],
        "plans": {"good": PLAN.to_json(), "never run": PLAN.to_json()},
        "runs": [{"plan": "good", "error": "worker-died: ..."}, *runs],
    }


def test_a_turn_is_judged_by_the_profilings_around_it() -> None:
    # Of three profilings, the third is missing: the second turn was broken off.
    cell = document(told([1.0, 2.0, 3.0]), told([4.0], repeat=1, more_memory=1.25))
    (pair,) = pairs_of(cell, instances_of(cell))
    assert (pair.cell, pair.plan, pair.measured) == (CELL, "good", (2.0, 4.0))
    first, second = pair.predicted
    assert SECONDS < first < second
    assert pair.error == pytest.approx((first / 2 + second / 4) / 2 - 1)
    assert pair.noise == pytest.approx(1.0)
    assert min(pair.memory_errors) == pytest.approx(-0.2, abs=1e-6)
    assert max(pair.memory_errors) == pytest.approx(0.0, abs=1e-6)


def test_ranks() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 21.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_the_report_says_what_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / f"{CELL}.json").write_text(json.dumps(document(told([1000 * SECONDS]))))
    table = report(tmp_path)
    assert table.rows[0][:2] == (CELL, "good")
    nano, nx, again, *same, median, most, ranks, memory = (holds for _, holds in table.verdicts)
    assert (nano, nx, again, same) == (False, True, True, [False, True, True])
    assert (median, most, ranks, memory) == (False, False, True, True)
