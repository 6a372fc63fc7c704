"""What made a run, and what a report says of runs that were made by different things."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.measuring import processor
from bench.origin import COMPARED, boot_id, commit, origin, remark, remarks

MADE = {"commit": "abc", "torch": "2.13", "processor": "EPYC", "boot": "first"}


def git(folder: Path, *words: str) -> str:
    settings = ("user.name=somebody", "user.email=somebody@example.org", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *(word for setting in settings for word in ("-c", setting)), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_run_of_now() -> None:
    made = origin()
    assert set(COMPARED) < set(made)
    assert (made["processor"], made["boot"]) == (processor(), boot_id())
    assert made["torch"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_the_one_that_changed_the_code(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path / "edgeswarm/plan.py", "1")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "code")
    first = commit(tmp_path)
    assert git(tmp_path, "rev-parse", "HEAD").startswith(first)
    assert len(first) >= 12
    write(tmp_path / "bench/results/matrix/cell.json", "{}")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "a result")
    write(tmp_path / "bench/results/matrix/cell.json", "{'more': 1}")
    assert commit(tmp_path) == first, "what was measured is no code"
    write(tmp_path / "edgeswarm/plan.py", "2")
    assert commit(tmp_path) == f"{first}-dirty"


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""


def test_runs_that_are_alike_need_no_remark() -> None:
    assert remark([]) == ""
    assert remark([MADE, {**MADE, "boot": "second"}]) == ""


@pytest.mark.parametrize("what", COMPARED)
def test_runs_that_differ_are_told(what: str) -> None:
    assert remark([MADE, MADE, {**MADE, what: "other"}]) == f"runs differ in {what}: {MADE[what]}, other"


def test_runs_of_before_are_told() -> None:
    assert remark([{}, {"boot": "first"}]) == "measured before commit, torch and processor were written down"
    told = remark([{}, MADE, {**MADE, "commit": ""}])
    before = "1 of 3 runs measured before commit, torch and processor were written down"
    assert told == f"{before}; runs differ in commit: abc, not known"


def test_results_with_the_same_remark_share_a_line() -> None:
    assert remarks({"A": "old", "B": "", "C": "old", "D": "other"}) == ["A, C: old", "D: other"]
