"""When a test accuracy was reached, and the table of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench import time_to_accuracy
from bench.jobs.digits import TASKS, Digits
from bench.measuring import processor
from bench.peers.settings import PeerSettings
from bench.time_to_accuracy import FORMAT, METHODS, TaskMeasurement, epoch_seconds, reached, report
from tests.bench.test_measured_ablations import Bed


def run(method: str, repeat: int, *accuracies: float, seconds: float = 10.0) -> dict[str, Any]:
    epochs = [
        {"trained_seconds": number * seconds, "seconds": number * seconds + 5, "accuracy": accuracy}
        for number, accuracy in enumerate(accuracies, 1)
    ]
    return {"method": method, "repeat": repeat, "epochs": epochs}


DOCUMENT: dict[str, Any] = {
    "format": FORMAT,
    "task": "cnn",
    "target": 0.9,
    "runs": [
        run("edgeswarm", 0, 0.5, 0.91, 0.95),
        run("edgeswarm", 1, 0.5, 0.8, 0.95),
        run("single device", 0, 0.5, 0.95, seconds=30.0),
        {"method": "DDP, shares by speed", "repeat": 0, "problem": "out of memory on nano-1"},
    ],
}


def test_the_first_epoch_that_is_good_enough() -> None:
    assert reached(run("x", 0, 0.5, 0.91, 0.89, 0.95), 0.9) == {
        "trained_seconds": 20.0,
        "seconds": 25.0,
        "accuracy": 0.91,
    }
    assert reached(run("x", 0, 0.5), 0.9) is None
    assert reached({"problem": "..."}, 0.9) is None


def test_first_and_later_epochs() -> None:
    ends = [(3.0, 5.0, 7.5), (4.0,)]
    runs = [{"epochs": [{"trained_seconds": end} for end in each]} for each in ends]
    assert epoch_seconds(runs) == ([3.0, 4.0], [2.0, 2.5])


def test_the_table() -> None:
    table = report([DOCUMENT])
    assert table.rows[0] == (
        *("cnn", "90%", "edgeswarm", "25.0 (20.0 to 30.0)", "30.0 (25.0 to 35.0)", "2 (2 to 3)"),
        *("10.00 (10.00 to 10.00)", "10.00 (10.00 to 10.00)"),
    )
    assert [row[3] for row in table.rows[2:]] == ["out of memory on nano-1", "not yet"]
    tuned = {"single device": PeerSettings("to_accuracy", ["nx-1"], 64, channels_last=True)}
    tuned["1F1B"] = PeerSettings("pipeline_to_accuracy", ["nx-1", "tx2-1"], 16, {"cuts": "0,4,9"})
    settings = {"peers": {name: asdict(each) for name, each in tuned.items()}}
    assert [row[2] for row in report([DOCUMENT | settings]).rows] == [
        "edgeswarm",
        "single device, 64 at once, channels last",
        "DDP, shares by speed",
        "1F1B, 16 at once, 2 stages, channel by channel",
    ]
    assert table.verdicts == [
        ("cnn, training: 3.00 times as fast as single device, by one repeat, beside which no noise is known", False),
        ("cnn, in all: 2.60 times as fast as single device, by one repeat, beside which no noise is known", False),
    ]
    assert table.remarks == ["cnn: measured before commit, torch and processor were written down"]


def test_a_run_that_never_reaches_it_counts_as_the_slowest() -> None:
    more = {**DOCUMENT, "runs": [*DOCUMENT["runs"], run("edgeswarm", 2, 0.5, 0.8, 0.89)]}
    table = report([more])
    assert table.rows[0][3] == "25.0 (20.0 to 30.0) (2 of 3 runs)"
    assert table.verdicts == [
        ("cnn, training: 3.00 times as fast as single device, by one repeat, beside which no noise is known", False),
        ("cnn, in all: 2.60 times as fast as single device, by one repeat, beside which no noise is known", False),
    ]


def test_what_differs_by_no_more_than_its_repeats_is_equal() -> None:
    runs = [run("edgeswarm", repeat, 0.95, seconds=seconds) for repeat, seconds in enumerate((10.0, 10.0, 10.0))]
    runs += [run("single device", repeat, 0.95, seconds=seconds) for repeat, seconds in enumerate((9.0, 11.0, 14.0))]
    verdicts = report([{**DOCUMENT, "runs": runs}]).verdicts
    assert verdicts[0] == ("cnn, training: equal, 1.10 (0.90 to 1.40) times as fast as single device", False)


def test_where_a_run_never_reached_it_medians_are_told() -> None:
    runs = [run("edgeswarm", 0, 0.95), run("single device", 0, 0.95, seconds=30.0)]
    runs += [run("edgeswarm", 1, 0.5), run("single device", 1, 0.95, seconds=30.0)]
    verdicts = report([{**DOCUMENT, "runs": runs}]).verdicts
    assert verdicts[0] == ("cnn, training: inf s beside 30.0 of single device, not reached in each run", False)


def test_where_no_run_of_ours_reached_it_that_does_not_hold() -> None:
    ours = [run("edgeswarm", 0, 0.5, 0.89)]
    ours.append({"method": "edgeswarm", "repeat": 1, "problem": "out of memory on nano-1"})
    theirs = [run("single device", repeat, 0.95) for repeat in range(2)]
    for runs in ([*ours, *theirs], ours):
        table = report([{**DOCUMENT, "runs": runs}])
        assert table.rows[0][3] == "out of memory on nano-1"
        assert table.verdicts == [("cnn: edgeswarm reaches it", False)]
    assert report([{**DOCUMENT, "runs": theirs}]).verdicts == [], "not measured yet"


def test_what_was_measured_in_another_way_is_left_out() -> None:
    table = report([{**DOCUMENT, "format": "edgeswarm-accuracy/2"}])
    assert (table.rows, table.verdicts) == ([], [])
    assert table.remarks[0] == "cnn: measured in another way (edgeswarm-accuracy/2), and left out"


def test_an_epoch_is_whole_mini_batches() -> None:
    assert len(Digits(test=True)) == 360
    assert {len(Digits()) % task.batch_size for task in TASKS.values()} == {0}


def test_each_run_says_what_made_it_and_another_processors_are_laid_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EmulatedLan", "BedCluster"):
        monkeypatch.setattr(time_to_accuracy, name, Bed)
    for name in ("profile_in_turn", "trained", "_run_peer"):
        monkeypatch.setattr(time_to_accuracy, name, lambda *_, **__: {"epochs": []})
    monkeypatch.setattr(time_to_accuracy, "tuned_peer", lambda *_: PeerSettings("to_accuracy", ["nx-1"], 64))
    monkeypatch.setattr(time_to_accuracy, "origin", lambda: {"commit": "abc"})
    other = {**DOCUMENT, "runs": DOCUMENT["runs"][:1], "processor": "another one"}
    (tmp_path / "cnn.json").write_text(json.dumps(other))
    TaskMeasurement("cnn", tmp_path, repeats=1).run()
    document = json.loads((tmp_path / "cnn.json").read_text())
    assert [(told["method"], told["commit"]) for told in document["runs"]] == [(method, "abc") for method in METHODS]
    assert document["peers"]["single device"]["micro_batch"] == 64
    assert document["processor"] == processor()
    assert json.loads((tmp_path / "aside" / "cnn.another-one.json").read_text()) == other


def test_what_was_measured_in_another_way_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "cnn.json").write_text(
        json.dumps({**DOCUMENT, "format": "edgeswarm-accuracy/1", "processor": processor()})
    )
    with pytest.raises(SystemExit, match="measured in another way"):
        TaskMeasurement("cnn", tmp_path, repeats=3).run()
