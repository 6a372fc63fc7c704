"""A measurement's file: where it goes on, and what is laid aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import kept_document
from bench.kept_document import KeptDocument
from bench.measuring import processor

NEW: dict[str, Any] = {"format": "x/1", "runs": []}


def opened(folder: Path, *, complete: bool = False) -> KeptDocument:
    return KeptDocument(folder / "cnn.json", new=NEW, is_complete=lambda document: complete)


def write(folder: Path, **more: Any) -> None:
    (folder / "cnn.json").write_text(json.dumps({**NEW, "runs": [1], **more}))


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_a_new_one_says_where_it_is_measured(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    assert kept.content == {**NEW, "processor": processor()}
    kept.keep(plans={})
    assert read(tmp_path / "cnn.json") == {**NEW, "processor": processor(), "plans": {}}


def test_it_goes_on_on_the_same_processor(tmp_path: Path) -> None:
    write(tmp_path, processor=processor())
    assert opened(tmp_path).content["runs"] == [1]


@pytest.mark.parametrize(
    ("more", "name"), [({"processor": "another one (x)"}, "cnn.another-one-x.json"), ({}, "cnn.unknown.json")]
)
def test_it_begins_anew_on_another_one(tmp_path: Path, more: dict[str, str], name: str) -> None:
    write(tmp_path, **more)
    kept = opened(tmp_path)
    assert kept.content == {**NEW, "processor": processor()}
    assert read(tmp_path / "cnn.json")["runs"] == [1], "until something is kept nothing is lost"
    kept.keep()
    assert read(tmp_path / "aside" / name) == {**NEW, "runs": [1], **more}
    assert read(tmp_path / "cnn.json")["runs"] == []


def test_what_was_laid_aside_goes_on_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, processor="one")
    turns: list[tuple[str, list[int]]] = [("another", []), ("one", [1])]
    for name, runs in turns:
        monkeypatch.setattr(kept_document, "processor", lambda name=name: name)
        kept = opened(tmp_path)
        assert kept.content["runs"] == runs
        kept.keep()
    assert read(tmp_path / "cnn.json")["processor"] == "one"


def test_a_complete_one_stays_on_any_machine(tmp_path: Path) -> None:
    write(tmp_path)
    assert opened(tmp_path, complete=True).content == {**NEW, "runs": [1]}


def test_runs_of_a_repeat_that_was_broken_off_go(tmp_path: Path) -> None:
    runs = [{"repeat": 0, "devices": 1}, {"repeat": 0, "devices": 2}, {"repeat": 1, "devices": 2}]
    write(tmp_path, processor=processor(), runs=runs)
    kept = opened(tmp_path)
    kept.forget_repeats({(2, 0)}, repeat_of=lambda run: (run["devices"], run["repeat"]))
    assert kept.content["runs"] == [runs[0], runs[2]]
    kept.forget_repeats({0})
    assert kept.content["runs"] == [runs[2]]
