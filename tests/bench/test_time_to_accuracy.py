"""When a test accuracy was reached, and the table of it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import time_to_accuracy
from bench.jobs.digits import TASKS as JOB_TASKS
from bench.jobs.digits import Digits
from bench.measuring import processor
from bench.peers.launch import PeerRun
from bench.peers.settings import PeerSettings
from bench.time_to_accuracy import FORMAT, METHODS, TASKS, TaskMeasurement, reached, report, settings_to_try, tuned_peer
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


def test_the_table() -> None:
    table = report([DOCUMENT])
    assert table.rows[0] == ("cnn", "90%", "edgeswarm", "25.0 (20.0 to 30.0) s", "30.0 (25.0 to 35.0) s", "2 (2 to 3)")
    assert table.rows[2][3] == "out of memory on nano-1"
    tuned = {"peers": {"single device": {"micro_batch": 64, "channels_last": True}}}
    assert [row[2] for row in report([DOCUMENT | tuned]).rows] == [
        "edgeswarm",
        "single device, 64 at once, channels last",
        "DDP, shares by speed",
    ]
    assert table.verdicts == [
        ("cnn, training: 3.00 times as fast as single device", True),
        ("cnn, in all: 2.60 times as fast as single device", True),
    ]
    assert table.remarks == ["cnn: measured before commit, torch and processor were written down"]


def test_a_run_that_never_reaches_it_counts_as_the_slowest() -> None:
    more = {**DOCUMENT, "runs": [*DOCUMENT["runs"], run("edgeswarm", 2, 0.5, 0.8, 0.89)]}
    table = report([more])
    assert table.rows[0][3] == "25.0 (20.0 to 30.0) s (2 of 3 runs)"
    assert table.verdicts == [
        ("cnn, training: 3.00 times as fast as single device", True),
        ("cnn, in all: 2.60 times as fast as single device", True),
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


def test_what_was_measured_in_another_way_is_left_out() -> None:
    table = report([{**DOCUMENT, "format": "edgeswarm-accuracy/2"}])
    assert (table.rows, table.verdicts) == ([], [])
    assert table.remarks[0] == "cnn: measured in another way (edgeswarm-accuracy/2), and left out"


def test_the_tasks_are_the_jobs() -> None:
    assert {name: (task.target, task.batch_size) for name, task in JOB_TASKS.items()} == TASKS


def test_an_epoch_is_whole_mini_batches() -> None:
    assert len(Digits(test=True)) == 360
    assert {len(Digits()) % task.batch_size for task in JOB_TASKS.values()} == {0}


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


def test_a_peer_is_tried_in_both_layouts_and_up_to_its_largest_share() -> None:
    cores = {"nano-1": 0.1, "nx-1": 0.3}
    alone = settings_to_try("single device", "mobilenet_v2", cores)
    assert {(each.micro_batch, each.channels_last) for each in alone} == {
        (size, last) for size in (16, 32, 64, 128) for last in (True, False)
    }
    assert all(each.devices == ["nx-1"] and not each.options for each in alone)
    together = settings_to_try("DDP, shares by speed", "cnn", cores)  # 16 and 48 samples
    assert {each.micro_batch for each in together} == {16, 32, 64}
    assert {each.options["shares"] for each in together} == {"16,48"}


def test_a_peer_has_the_settings_of_its_quickest_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tried(_: object, script: str, devices: list[str], *words: object, **__: object) -> PeerRun:
        assert (script, devices, words[-1]) == ("to_accuracy", ["nx-1"], "--trial")
        micro_batch = int(str(words[words.index("--micro-batch") + 1]))
        if micro_batch == 128:
            return PeerRun(problem="out of memory on nx-1")
        return PeerRun((0.0, 1.0 - micro_batch / 100 - 0.1 * ("--channels-last" in words), 9.0))

    monkeypatch.setattr(time_to_accuracy, "run_peer", tried)
    bed = SimpleNamespace(environment=SimpleNamespace(devices=[SimpleNamespace(name="nx-1", cores=0.3)]))
    given = (bed, SimpleNamespace(paused=nullcontext), "single device", "mobilenet_v2", tmp_path)
    best = tuned_peer(*given)  # type: ignore[arg-type]
    assert (best.micro_batch, best.channels_last) == (64, True)
    monkeypatch.setattr(time_to_accuracy, "run_peer", lambda *_, **__: PeerRun(problem="not done within 900 s"))
    with pytest.raises(RuntimeError, match="no setting runs: \\(16, 'channels last'\\)"):
        tuned_peer(*given)  # type: ignore[arg-type]
