"""What a cell's document lacks, and what of it counts on another machine."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from bench import kept_document, matrix_cell, origin
from bench.cell import Cell
from bench.matrix_cell import SMALL, CellMeasurement
from bench.matrix_on_bed import Effort
from bench.measuring import processor
from bench.peers.settings import PeerSettings
from tests.bench.test_measured_ablations import Bed

CELL = Cell.parse("C:100:mobilenet_v2")
EFFORT = Effort(repeats=3)


@pytest.fixture(autouse=True)
def boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file in which the kernel says which start of the machine this is."""
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    monkeypatch.setattr(origin, "_BOOT_ID", path)
    return path


def keep(folder: Path, *runs: tuple[int, str], cell: Cell = CELL, boot: str = "first", **more: Any) -> None:
    document = {
        **CellMeasurement(cell, folder, effort=EFFORT).document,
        "plans": {"edgeswarm": {}, "gpipe": {}},
        "peers": {"DDP": {}},
        "runs": [{"repeat": repeat, "method": method, "boot": boot} for repeat, method in runs],
        **more,
    }
    (folder / f"{cell.name}.json").write_text(json.dumps(document))


def test_each_repeat_has_every_method_once(tmp_path: Path) -> None:
    keep(tmp_path)
    missing = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    turns = ["edgeswarm", "DDP", "gpipe", "edgeswarm, again", "edgeswarm, first epoch served"]
    assert missing == [(repeat, name) for repeat in range(3) for name in turns]


def test_a_small_one_has_no_epoch_that_is_served(tmp_path: Path) -> None:
    keep(tmp_path)
    missing = CellMeasurement(CELL, tmp_path, effort=SMALL).missing()
    assert missing == [(0, name) for name in ["edgeswarm", "DDP", "gpipe", "edgeswarm, again"]]


def test_a_new_one_is_measured_with_its_own_settings(tmp_path: Path) -> None:
    made = CellMeasurement(CELL, tmp_path, effort=SMALL)
    kept = json.loads(json.dumps(made.document))
    assert made.document["effort"] == kept["effort"] == made._effort_told


def test_a_small_one_is_no_beginning_of_one_in_full(tmp_path: Path) -> None:
    CellMeasurement(CELL, tmp_path, effort=SMALL)._kept.keep()
    with pytest.raises(SystemExit, match="begun with other settings"):
        CellMeasurement(CELL, tmp_path, effort=EFFORT).run()


def test_a_repeat_that_was_broken_off_is_measured_as_a_whole(tmp_path: Path) -> None:
    keep(tmp_path)
    turns = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    whole_repeat = [turn for turn in turns if turn[0] == 0]
    keep(tmp_path, *whole_repeat, (1, "edgeswarm"), (1, "DDP"))
    begun = CellMeasurement(CELL, tmp_path, effort=EFFORT)
    assert [(run["repeat"], run["method"]) for run in begun.document["runs"]] == whole_repeat
    assert begun.missing() == [turn for turn in turns if turn[0] > 0]
    assert begun.document["plans"] == {"edgeswarm": {}, "gpipe": {}}


def test_on_another_processor_it_begins_anew(tmp_path: Path) -> None:
    keep(tmp_path, (0, "edgeswarm"), processor="another one")
    begun = CellMeasurement(CELL, tmp_path, effort=EFFORT).document
    assert (begun["runs"], begun["processor"], "plans" in begun) == ([], processor(), False)


def test_what_another_processor_measured_is_laid_aside_until_one_like_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = processor()
    keep(tmp_path)
    turns = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    keep(tmp_path, *(turn for turn in turns if turn[0] == 0))
    mine = json.loads((tmp_path / f"{CELL.name}.json").read_text())

    def measure_on(name: str) -> CellMeasurement:
        monkeypatch.setattr(kept_document, "processor", lambda: name)
        measurement = CellMeasurement(CELL, tmp_path, effort=EFFORT)
        measurement._kept.keep()
        return measurement

    assert measure_on("another one").document["runs"] == []
    assert measure_on(here).document == mine
    assert measure_on("another one").document["processor"] == "another one"


def test_what_is_complete_stays(tmp_path: Path, boot: Path) -> None:
    keep(tmp_path)
    missing = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    keep(tmp_path, *missing, processor="another one")
    boot.write_text("second\n")
    measurement = CellMeasurement(CELL, tmp_path, effort=EFFORT)
    assert len(measurement.document["runs"]) == len(missing)
    measurement.run()  # without root and devices: there is nothing to do


def test_a_complete_one_of_other_rules_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path)
    keep(tmp_path, *CellMeasurement(CELL, tmp_path, effort=EFFORT).missing(), format="edgeswarm-matrix/2")
    CellMeasurement(CELL, tmp_path, effort=EFFORT).run()
    assert "measured by other rules (edgeswarm-matrix/2)" in capsys.readouterr().err


def test_a_complete_one_stays_whose_runs_do_not_say_when_the_machine_was_started(tmp_path: Path) -> None:
    keep(tmp_path)
    missing = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    runs = [{"repeat": repeat, "method": method} for repeat, method in missing]
    keep(tmp_path, runs=runs)
    assert CellMeasurement(CELL, tmp_path, effort=EFFORT).document["runs"] == runs


def test_what_devices_do_alone_is_taken_from_another_rate_of_the_same_machine(tmp_path: Path, boot: Path) -> None:
    other = Cell.parse("C:1000:mobilenet_v2")
    keep(tmp_path, cell=other, alone={"0.6": {"samples_per_second": 300.0}})
    measurement = CellMeasurement(CELL, tmp_path, effort=EFFORT)
    assert measurement.alone_of_another_rate() == {"0.6": {"samples_per_second": 300.0}}
    boot.write_text("second\n")
    assert CellMeasurement(CELL, tmp_path, effort=EFFORT).alone_of_another_rate() is None


@pytest.mark.parametrize(("minutes", "has_run", "stays"), [(50, False, True), (70, False, False), (70, True, True)])
def test_plans_of_hours_ago_are_made_anew_unless_they_have_been_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, has_run: bool, stays: bool
) -> None:
    when = time.strftime(matrix_cell.WHEN, time.localtime(time.time() - 60 * minutes))
    keep(tmp_path, when=when, profilings=[{"instance": {}}])
    measurement = CellMeasurement(CELL, tmp_path, effort=EFFORT)
    measurement.document["runs"] = [{"repeat": 0, "method": "DDP"}] if has_run else []
    measurement._forget_old_plans()
    kept = json.loads((tmp_path / f"{CELL.name}.json").read_text())
    assert ("plans" in kept, bool(kept["profilings"])) == (stays, stays)
    assert "peers" in kept


class OnNoBed:
    """Where only peers run."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def profile(self, known: object) -> tuple[None, None]:
        return None, None

    def run_peer(self, settings: PeerSettings) -> dict[str, Any]:
        return {"devices": settings.devices}

    def train(self, plan: object) -> dict[str, Any]:
        return {}

    def train_long(self, plan: object, instance: object) -> dict[str, Any]:
        return {}

    def train_served(self) -> dict[str, Any]:
        return {}


def test_each_run_says_what_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EmulatedLan", "BedCluster"):
        monkeypatch.setattr(matrix_cell, name, Bed)
    monkeypatch.setattr(matrix_cell, "OnBed", OnNoBed)
    monkeypatch.setattr(matrix_cell, "origin", lambda: {"commit": "abc", "boot": "first"})
    monkeypatch.setattr(matrix_cell, "best_pace", lambda logs: {"0": 0.001})
    keep(tmp_path)
    turns = CellMeasurement(CELL, tmp_path, effort=EFFORT).missing()
    others = [turn for turn in turns if turn[0] < 2]
    keep(
        tmp_path,
        *others,
        peers={"DDP": asdict(PeerSettings("data_parallel", ["nx-1"], 8))},
        profilings=[{"instance": {}}],
    )
    monkeypatch.setattr(matrix_cell, "Plan", MagicMock())
    monkeypatch.setattr(matrix_cell, "instance_from_json", lambda told: told)
    CellMeasurement(CELL, tmp_path, effort=EFFORT).run()
    document = json.loads((tmp_path / f"{CELL.name}.json").read_text())
    made = {"method": "DDP", "repeat": 2, "commit": "abc", "boot": "first", "devices": ["nx-1"]}
    made["best_pace"] = {"0": 0.001}
    assert made in document["runs"]
    assert len(document["runs"]) == len(turns)
