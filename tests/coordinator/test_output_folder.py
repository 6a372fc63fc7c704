"""The output folder: refused before the training where it could not be written after it."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.manifest import MANIFEST_NAME
from edgeswarm_coordinator.options import TrainOptions
from edgeswarm_coordinator.output_folder import check_output_can_be_made


def test_a_new_folder_below_new_folders_can_be_made_and_is_not_made_yet(tmp_path: Path) -> None:
    check_output_can_be_made(tmp_path / "runs" / "first")
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_refused_even_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for taken in (tmp_path, tmp_path / "link"):
        with pytest.raises(EdgeswarmError, match="exists already") as caught:
            check_output_can_be_made(taken)
        assert caught.value.code is ErrorCode.OUTPUT_EXISTS


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeswarmError, match=r"file is not a folder\.") as caught:
        check_output_can_be_made(tmp_path / "file" / "result")
    assert caught.value.code is ErrorCode.OUTPUT_FAILED


def test_a_place_that_takes_no_folders_is_refused() -> None:
    with pytest.raises(EdgeswarmError, match="/proc can't be written to") as caught:
        check_output_can_be_made(Path("/proc/result"))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED


def test_a_name_that_no_disk_takes_is_said(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match=r"can't be looked at .File name too long") as caught:
        check_output_can_be_made(tmp_path / ("n" * 300))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED


def test_checkpoints_are_to_be_moved_with_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_where: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    options = TrainOptions(job_path=tmp_path / "job.py", output=tmp_path / "out")
    options.unfinished_folder.mkdir()
    with pytest.raises(EdgeswarmError, match="No space left on device") as caught:
        check_output_can_be_made(options.result_folder)
    assert caught.value.remedy == "Choose another folder with --output.", (
        "without a checkpoint there is nothing to move"
    )
    (options.unfinished_folder / MANIFEST_NAME).touch()
    with pytest.raises(EdgeswarmError, match="No space left on device") as caught:
        check_output_can_be_made(options.result_folder)
    assert f"move {options.unfinished_folder} to a disk with room" in caught.value.remedy
    assert "--resume --output DISK/out." in caught.value.remedy
