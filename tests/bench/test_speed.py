"""How slow the machine was, from what the metronome writes down."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.metronome import SAMPLE, sample
from bench.testbed.speed import at_one_best, slowness


def write(path: Path, seconds: list[float]) -> None:
    """One sample a second, from 0."""
    path.write_bytes(b"".join(SAMPLE.pack(float(when), each) for when, each in enumerate(seconds)))


def test_slowness_is_beside_the_best_of_each_processor(tmp_path: Path) -> None:
    write(tmp_path / "0", [1.0] * 10 + [2.0] * 10)
    write(tmp_path / "1", [3.0] * 20)
    assert slowness(tmp_path, 0.0, 9.0) == pytest.approx(1.0)
    assert slowness(tmp_path, 10.0, 19.0) == pytest.approx(1.5)
    assert slowness(tmp_path, 5.0, 14.0) == pytest.approx(1.25)
    assert slowness(tmp_path, 50.0, 60.0) is None


def test_half_a_sample_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(SAMPLE.pack(0.0, 1.0) + struct.pack("d", 1.0))
    assert slowness(tmp_path, 0.0, 1.0) == pytest.approx(1.0)


def test_runs_of_one_start_are_told_by_the_best_that_any_of_them_knows() -> None:
    runs: list[dict[str, Any]] = [
        {"boot": "one", "best_pace": {"0": 1.5}, "slowness": [1.0, None]},
        {"boot": "one", "best_pace": {"0": 1.0}, "slowness": [1.2]},
        {"boot": "one", "error": "worker-died: ..."},
        {"boot": "another", "best_pace": {"0": 2.0}, "slowness": [1.1]},
    ]
    told = at_one_best(runs)
    assert [run.get("slowness") for run in told] == [[1.5, None], [1.2], None, [1.1]]
    assert told[2] == runs[2]


def test_a_sample_is_a_short_piece_of_work() -> None:
    assert sample() > 0
