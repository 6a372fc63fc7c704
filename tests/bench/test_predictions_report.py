"""What the predictions' report is made of: the pairs, the errors, what holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predictions_report import at_pace, failures, pairs_of, report, with_pairs
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.simulator.simulate import round_seconds
from tests.coordinator.planner.instances import make_instance

CELL = "C-100-mobilenet_v2"
INSTANCE = make_instance((1.0, 1.0))
PLAN = make_plan(INSTANCE, "pipeline")
assert PLAN.predicted is not None
SECONDS = PLAN.predicted.round_seconds


def told(rounds: list[float], *, more_memory: float = 1.0) -> dict[str, Any]:
    assert PLAN.predicted is not None
    peaks = {name: more_memory * held for name, held in PLAN.predicted.memory_bytes.items()}
    return {"plan": "good", "round_seconds": [99.0, 99.0, *rounds], "peak_bytes": peaks}


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    seconds = {"nano-1": 200.0, "nx-1": 50.0, "again": 0.0}
    return {
        "cell": CELL,
        "profilings": [{"seconds": seconds}, {"seconds": {**seconds, "nano-1": 100.0}}],
        "plans": {"good": PLAN.to_json(), "never run": PLAN.to_json()},
        "runs": [{"plan": "good", "error": "worker-died: ..."}, *runs],
    }


def test_a_pair_is_the_prediction_and_the_median_round_of_all_runs() -> None:
    (pair,) = pairs_of(document(told([1.0, 2.0, 3.0]), told([4.0], more_memory=1.25)), INSTANCE)
    assert (pair.cell, pair.plan, pair.measured, pair.medians) == (CELL, "good", 2.5, (2.0, 4.0))
    assert pair.error == pytest.approx(SECONDS / 2.5 - 1)
    assert pair.noise == pytest.approx(1.0)
    assert min(pair.memory_errors) == pytest.approx(-0.2, abs=1e-6)
    assert max(pair.memory_errors) == pytest.approx(0.0, abs=1e-6)


def test_at_one_pace_runs_are_nearer_that_the_machine_drew_apart() -> None:
    slow, quick = told([4.0, 4.0]), told([2.0, 2.0])
    slow["slowness"], quick["slowness"] = [2.0] * 4, [1.1] * 4
    (pair,) = pairs_of(document(slow, quick), INSTANCE)
    assert pair.noise == pytest.approx(1.0)
    assert pair.noise_at_one_pace == pytest.approx(0.1)


def test_the_report_says_what_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / f"{CELL}.json").write_text(json.dumps(document(told([1000 * SECONDS]))))
    table = report(tmp_path, instance_of=lambda _: INSTANCE)
    assert table.rows[0][:2] == (CELL, "good")
    nano, nx, again, *same, ran, pairs, median, most, ranks, memory = (holds for _, holds in table.verdicts)
    assert (nano, nx, again, same) == (False, True, True, [True, True, True])
    assert not ran, "a plan that failed in a run was not predicted to"
    assert (pairs, median, most, ranks, memory) == (False, False, False, True, True)


def test_a_cell_of_the_matrix_counts_with_its_runs_on_our_own_runtime() -> None:
    assert PLAN.predicted is not None
    devices = {name: {"peak_bytes": held} for name, held in PLAN.predicted.memory_bytes.items()}
    ran = {"round_seconds": [1.0, 3.0, 2.0], "slowness": [1.0, None, 1.0], "devices": devices}
    runs = [
        {"method": "good", "repeat": 0, **ran},
        {"method": "good, again", "repeat": 0, **ran},
        {"method": "good", "repeat": 1, **ran, "round_seconds": [9.0] * 3, "share_moves": [{"round": 4}]},
        {"method": "good", "repeat": 2, "problem": "worker-died: ..."},
        {"method": "DDP", "repeat": 0, "round_seconds": [9.0]},
    ]
    cell = {**document(), "format": "edgeswarm-matrix/2", "runs": runs}
    (pair,) = pairs_of(with_pairs(cell), INSTANCE)
    assert (pair.plan, pair.measured, pair.medians) == ("good", 2.0, (2.0, 2.0))
    assert failures(with_pairs(cell)) == {"good": "worker-died: ..."}
    assert with_pairs(document()) == document()


def test_measured_ablations_count_with_all_runs_of_their_plans() -> None:
    told_twice = {"good": told([1.0]), "good, again": told([3.0])}
    plans = {"good": PLAN.to_json(), "of no memory": None}
    ablations = {**document(), "format": "edgeswarm-ablations/2", "plans": plans, "runs": told_twice}
    (pair,) = pairs_of(with_pairs(ablations), INSTANCE)
    assert (pair.plan, pair.medians) == ("good", (1.0, 3.0))


def test_at_one_pace_each_class_is_as_slow_as_the_rounds_were() -> None:
    a, b = INSTANCE.device_names
    profilings: list[dict[str, Any]] = [{"slowness_by_class": {a: 1.25}}, {"slowness_by_class": {a: 1.25, b: None}}]
    same, slower = (round_seconds(at_pace(INSTANCE, profilings, slow), PLAN) for slow in (1.25, 2.5))
    assert same == pytest.approx(SECONDS)
    assert SECONDS < slower <= 2 * SECONDS
    unknown = at_pace(INSTANCE, [{}], 9.0)
    assert unknown == INSTANCE
