"""What a cell's rounds leave out, the testbed and the training replaced: which plan is trained, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import left_out
from bench.cell import Cell
from bench.left_out import measure
from bench.matrix_resources import read_resources
from edgeswarm.plan import Plan

from .test_matrix_resources import CELL, document

CELL_OF_IT = Cell.parse("C:100:mobilenet_v2")


class Bed:
    """The LAN, its cluster, and what trains on it: a tenth of what was to be sent are zeros."""

    trained: Plan

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def train(self, plan: Plan) -> dict[str, Any]:
        Bed.trained = plan
        used = document(0.9)["runs"][0]["devices"]
        return {"devices": {name: {**each, "left_out_bytes": each["sent_bytes"] / 9} for name, each in used.items()}}


def test_the_cells_plan_is_trained_and_what_it_left_out_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EmulatedLan", "BedCluster", "OnBed"):
        monkeypatch.setattr(left_out, name, Bed)
    path = tmp_path / f"{CELL}.json"
    path.write_text(json.dumps(document(0.9)))
    devices = measure(path, CELL_OF_IT)
    kept = json.loads(path.read_text())
    assert Bed.trained == Plan.from_json(kept["plans"]["edgeswarm"])
    assert kept["runs"] == document(0.9)["runs"], "what was measured stays"
    assert kept["left_out"]["devices"] == devices
    assert kept["left_out"]["commit"]
    found = read_resources(kept)
    assert found is not None
    assert found.bytes_as_planned
    assert found.left_out_bytes == pytest.approx(0.1 * found.planned_bytes)
    assert list(tmp_path.iterdir()) == [path]
