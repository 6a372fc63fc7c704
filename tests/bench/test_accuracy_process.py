"""A training as a command of its own, and what it tells."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from bench.accuracy_process import TrainingClock, trained
from edgeswarm.config import Folders
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions


def options(folder: Path) -> TrainOptions:
    return TrainOptions(
        job_path=folder / "train.py", output=folder / "out", seed=1, discovery=DiscoveryOptions(mdns=False)
    )


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    told = trained(options(tmp_path), home=tmp_path)
    assert list(told) == ["problem"]
    identity = Folders.within(tmp_path).operator_dir / "identity.pem"
    assert told["problem"] == f"trust: This machine has not joined a cluster ({identity} is missing)."


def test_what_it_says_is_told_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.time()
    lines = [
        {"accuracy": 0.5, "trained_seconds": 4.0, "when": begun + 10.0},
        {"accuracy": 0.9, "trained_seconds": 6.5, "when": begun + 14.0},
    ]

    def ran(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        given = json.loads(words[-1])
        assert (given["seed"], given["home"], given["discovery"]["mdns"]) == (1, str(tmp_path), False)
        said = ["loading the job", *map(json.dumps, lines)]
        return subprocess.CompletedProcess(words, 0, stdout="\n".join(said))

    monkeypatch.setattr(subprocess, "run", ran)
    first, second = trained(options(tmp_path), home=tmp_path)["epochs"]
    assert (first["trained_seconds"], first["accuracy"]) == (4.0, 0.5)
    assert (second["trained_seconds"], second["accuracy"]) == (6.5, 0.9)
    assert first["seconds"] == pytest.approx(10.0, abs=1.0)
    assert second["seconds"] - first["seconds"] == pytest.approx(4.0)


def test_tests_are_no_training_and_what_passes_between_rounds_is() -> None:
    """The first epoch is from 10 to 14, the second one from 17 to 19.5."""
    clock = TrainingClock()
    for when, seconds in ((11.0, 1.0), (14.0, 2.0)):
        clock.round_done(when, seconds)
    clock.evaluated()
    assert clock.trained_seconds == pytest.approx(4.0)
    for when in (18.0, 19.5):
        clock.round_done(when, 1.0)
    clock.evaluated()
    assert clock.trained_seconds == pytest.approx(6.5)
