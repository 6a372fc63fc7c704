from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.metrics import round_to_json
from edgeswarm_coordinator.rounds_file import append_rounds, read_rounds

from .checkpoints import rounds


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    first = append_rounds(path, rounds(0, 3), end_bytes=0)
    second = append_rounds(path, rounds(3, 5), end_bytes=first)
    assert second == path.stat().st_size
    assert [*read_rounds(path, end_bytes=second, rounds=20)] == rounds(0, 5)
    assert [*read_rounds(path, end_bytes=first, rounds=20)] == rounds(0, 3)


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    end_bytes = append_rounds(path, rounds(0, 3), end_bytes=0)
    append_rounds(path, rounds(3, 9), end_bytes=end_bytes)
    with path.open("ab") as file:
        file.write(b'{"round": 9, "ep')
    end_bytes = append_rounds(path, rounds(3, 4), end_bytes=end_bytes)
    assert path.stat().st_size == end_bytes
    assert [*read_rounds(path, end_bytes=end_bytes, rounds=20)] == rounds(0, 4)


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    end_bytes = append_rounds(path, [dataclasses.replace(rounds(0, 1)[0], loss=math.inf)], end_bytes=0)
    (done,) = read_rounds(path, end_bytes=end_bytes, rounds=20)
    assert math.isnan(done.loss)
    assert round_to_json(done)["loss"] is None


@pytest.mark.parametrize("damage", ["shorter", "garbage", "another line", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rounds.jsonl"
    end_bytes = append_rounds(path, rounds(0, 3), end_bytes=0)
    content = path.read_bytes()
    damaged = {"shorter": content[:-3], "garbage": b"\xff" * end_bytes, "another line": b'{"round": 1}\n' * 1000}
    path.unlink() if damage == "gone" else path.write_bytes(damaged[damage])
    with pytest.raises(EdgeswarmError, match=r"rounds\.jsonl") as caught:
        list(read_rounds(path, end_bytes=end_bytes, rounds=20))
    assert caught.value.code is ErrorCode.CHECKPOINT
