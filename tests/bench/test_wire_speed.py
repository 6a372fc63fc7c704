"""The table of narrow wires."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench import wire_speed
from bench.measuring import processor
from bench.wire_speed import WIRES, measure, missing, report, settings
from tests.bench.test_measured_ablations import Bed


def run(wire: str, repeat: int, seconds: float) -> dict[str, Any]:
    return {
        "wire": wire,
        "repeat": repeat,
        "round_seconds": [99.0, 99.0, seconds],
        "losses": [3.0, 2.5, 2.0],
        "document": {"stages": [{}, {}]},
    }


def test_a_narrow_wire_beside_the_wide_one() -> None:
    runs = [
        *(run("float32", repeat, seconds) for repeat, seconds in enumerate((2.0, 3.0, 2.4))),
        *(run("bfloat16", repeat, seconds) for repeat, seconds in enumerate((1.0, 2.0, 2.4))),
        {"wire": "float16", "repeat": 0, "error": "worker-died: ..."},
    ]
    table = report([{"model": "mobilenet_v2", "runs": runs}])
    assert table.remarks == ["mobilenet_v2: measured before commit, torch and processor were written down"]
    rows = table.rows
    # The wide wire's run of the next turn is its second one in this: 2.45, 2.68 and 2.4 s.
    assert rows[0] == ("mobilenet_v2", "float32", "2.40 (2.00 to 3.00)", "", "50%", "", "50%", "2.0000", "2")
    assert rows[1][3:7] == ("equal (1.34, 1.00 to 2.45)", "50%", "equal (1.34, 1.00 to 2.45)", "50%")
    # One run of the narrow wire was slowed by something else.
    runs[5]["slowness"] = [1.0, 1.0, 1.2]
    slowed = report([{"model": "mobilenet_v2", "runs": runs}]).rows[1]
    assert (slowed[3], slowed[5]) == ("equal (1.34, 1.00 to 2.45)", "equal (1.34, 1.20 to 2.45)")
    assert rows[2] == ("mobilenet_v2", "float16", "worker-died: ...", *[""] * 6)
    # Turns belong together, also where one is missing.
    del runs[0]
    assert report([{"model": "mobilenet_v2", "runs": runs}]).rows[1][3] == "equal (1.17, 1.00 to 1.34)"


def test_what_was_broken_off_goes_on_with_the_runs_that_lack() -> None:
    runs = [run(wire, 0, 1.0) for wire in ("float32", "bfloat16")]
    assert missing({"runs": runs}, repeats=2) == [(0, "float16"), (1, "float32"), (1, "bfloat16"), (1, "float16")]
    assert missing({"runs": runs}, repeats=0) == []


def test_a_narrow_wire_with_a_plan_of_its_own_is_trained_with_the_wide_ones_too() -> None:
    plans = {wire: {"stages": [wire != "float16"], "predicted": {"round_seconds": len(wire)}} for wire in WIRES}
    found = settings({"plans": plans})
    assert list(found) == [*WIRES, "float16, float32's plan"]
    assert found["float16, float32's plan"] == ("float16", "float32")
    runs = [run(name, 0, seconds) for name, seconds in zip(found, (2.0, 1.0, 4.0, 1.0), strict=True)]
    rows = report([{"model": "mobilenet_v2", "plans": plans, "runs": runs}]).rows
    assert [row[1] for row in rows] == list(found)
    assert missing({"plans": plans, "runs": runs[:3]}, repeats=1) == [(0, "float16, float32's plan")]


class Cluster(Bed):
    def node_id(self, name: str) -> str:
        return f"id of {name}"


def test_each_run_says_what_made_it_and_another_processors_are_laid_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_speed, "EmulatedLan", Bed)
    monkeypatch.setattr(wire_speed, "BedCluster", Cluster)
    plan = mock.MagicMock()
    monkeypatch.setattr(wire_speed, "profile_in_turn", mock.MagicMock())
    monkeypatch.setattr(wire_speed, "make_plan_for_job", mock.MagicMock(return_value=(plan, None)))
    monkeypatch.setattr(wire_speed, "with_node_ids", mock.MagicMock(return_value=plan))
    plan.to_json.return_value = {}
    monkeypatch.setattr(wire_speed, "Plan", plan)
    monkeypatch.setattr(wire_speed, "run", lambda *_: {"round_seconds": [1.0] * 4})
    monkeypatch.setattr(wire_speed, "origin", lambda: {"commit": "abc"})
    other = {"model": "mobilenet_v2", "processor": "another one", "runs": [run("float32", 0, 1.0)]}
    (tmp_path / "mobilenet_v2.json").write_text(json.dumps(other))
    measure("mobilenet_v2", tmp_path, repeats=1)
    document = json.loads((tmp_path / "mobilenet_v2.json").read_text())
    assert [(told["wire"], told["commit"]) for told in document["runs"]] == [(wire, "abc") for wire in WIRES]
    assert (document["processor"], document["plans"]) == (processor(), {wire: {} for wire in WIRES})
    assert json.loads((tmp_path / "aside" / "mobilenet_v2.another-one.json").read_text()) == other
