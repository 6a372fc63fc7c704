from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.manifest import manifest_from_text

from .checkpoints import evaluation, manifest

PATH = Path("out.unfinished") / "manifest.json"


def test_there_and_back() -> None:
    whole = manifest(
        8,
        evaluations=(evaluation(4, best=True), evaluation(8, best=False)),
        rounds_bytes=900,
        rounds_seconds=4.5,
        wire_dtype="bfloat16",
    )
    assert manifest_from_text(json.dumps(whole.to_json()), PATH) == whole
    assert whole.best == evaluation(4, best=True)
    assert (whole.rounds, manifest(1).best) == (20, None)


def change(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update({key: value})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (change("format", "edgeswarm-checkpoint/9"), "format is 'edgeswarm-checkpoint/9'"),
        (change("round", 0), "round must be a whole number of at least 1"),
        (change("round", None), "round is missing"),
        (change("plan", {"stages": []}), "The plan is not valid"),
        (change("evaluations", [{"round": 3}]), r"evaluations\[0\]\.epoch is missing"),
        (lambda document: document["plan"].update(stages=3), "stages must be a list"),
    ],
)
def test_what_is_wrong_in_it_is_named_with_the_file(damage: Callable[[dict[str, Any]], object], problem: str) -> None:
    document = manifest(8).to_json()
    damage(document)
    with pytest.raises(EdgeswarmError, match=f"manifest.json: .*{problem}") as caught:
        manifest_from_text(json.dumps(document), PATH)
    assert caught.value.code is ErrorCode.CHECKPOINT
    assert caught.value.remedy == "Move out.unfinished away and train from the beginning."


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", '{"format": "edgeswarm-checkpoint/1"'])
def test_no_manifest_at_all(text: str) -> None:
    with pytest.raises(EdgeswarmError, match=r"manifest\.json") as caught:
        manifest_from_text(text, PATH)
    assert caught.value.code is ErrorCode.CHECKPOINT
