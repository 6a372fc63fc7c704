"""A command's folder: gone with it, and cleared away by the next one where it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.work_folder import WorkFolder

COMMAND = """
import sys, time
from pathlib import Path
from edgeswarm_coordinator.work_folder import WorkFolder
folder = WorkFolder(Path(sys.argv[1]))
(folder.path / "layer-0").write_bytes(bytes(1000))
print(folder.path, flush=True)
time.sleep(60)
"""


def test_it_is_gone_with_the_command(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.cleanup()
    folder.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_is_cleared_away_and_what_lives_stays(tmp_path: Path) -> None:
    (tmp_path / "edgeswarm-cluster-1").mkdir()  # somebody else's, without a lock in it
    mine = WorkFolder(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", COMMAND, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        WorkFolder(tmp_path).cleanup()
        assert left.is_dir()
        assert mine.path.is_dir()
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert left.is_dir()
    WorkFolder(tmp_path).cleanup()
    assert not left.exists()
    assert mine.path.is_dir()
    assert (tmp_path / "edgeswarm-cluster-1").is_dir()
    mine.cleanup()


def test_where_none_can_be_made_it_is_said_how_to_choose_another_place() -> None:
    with pytest.raises(EdgeswarmError, match=r"No temporary folder can be made: .* \(/proc\)") as caught:
        WorkFolder(Path("/proc"))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "TMPDIR" in caught.value.remedy
