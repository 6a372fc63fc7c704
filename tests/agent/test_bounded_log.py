from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.bounded_log import BoundedLog

# More than a pipe holds: who writes them waits for ever where nobody reads.
LINES = [f"line {number}\n".encode() for number in range(30_000)]


def copied(log: BoundedLog) -> None:
    """All lines, through a pipe as a worker's output comes."""
    read, write = os.pipe()
    log.follow(os.fdopen(read, "rb", buffering=0))
    with os.fdopen(write, "wb") as stream:
        stream.writelines(LINES)
    log.finish(20.0)


def test_a_full_disk_costs_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.symlink_to("/dev/full")
    log = BoundedLog(path)
    copied(log)
    assert log.tail == b"".join(LINES)[-16 * 1024 :].decode()


def test_a_folder_that_is_taken_away_costs_the_file_alone(tmp_path: Path) -> None:
    """The next file can't begin there."""
    log = BoundedLog(tmp_path / "logs" / "worker.log", largest_bytes=1000)
    shutil.rmtree(tmp_path / "logs")
    copied(log)
    assert log.tail.endswith("line 29998\nline 29999\n")
    assert not (tmp_path / "logs").exists()


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in its place")
    with pytest.raises(EdgeswarmError, match="can't be written") as caught:
        BoundedLog(tmp_path / "logs" / "worker.log")
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
