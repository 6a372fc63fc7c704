"""The plans that are trained: distinct ones, among them a bad one. What is known of devices before."""

from __future__ import annotations

import json
from pathlib import Path

from bench.bad_plan import BAD_PLAN
from bench.cell import Cell
from bench.origin import boot_id
from bench.predictions import CELLS, plans_of, profiled_before
from tests.coordinator.planner.instances import make_instance


def test_cells() -> None:
    assert len({Cell.parse(text).name for text in CELLS}) == len(CELLS)


def test_the_bad_plan_is_worse_than_the_others() -> None:
    instance = make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1)
    plans = plans_of(instance)
    seconds = {name: plan.predicted.round_seconds for name, plan in plans.items() if plan.predicted is not None}
    assert seconds[BAD_PLAN] == max(seconds.values())


def test_what_the_newest_cell_of_the_environment_and_model_measured_is_known(tmp_path: Path) -> None:
    cell = Cell.parse("D:100:bert_small")
    assert profiled_before(cell, tmp_path) is None
    cells = [
        ("D-1000-bert_small", "08:00", boot_id()),
        ("D-500-bert_small", "09:00", boot_id()),
        ("D-200-bert_small", "10:00", "before the machine was started"),
        ("C-100-bert_small", "11:00", boot_id()),
        ("D-100-resnet_50", "12:00", boot_id()),
    ]
    for name, when, boot in cells:
        document = {"cell": name, "when": when, "boot": boot, "profilings": [{"of": name}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "begun.json").write_text(json.dumps({"cell": "D-50-bert_small", "boot": boot_id(), "profilings": []}))
    known = profiled_before(cell, tmp_path)
    assert known is not None
    assert known["of"] == "D-500-bert_small"
