from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeswarm.own_module import own_module


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 can't be told not to import from the current folder"
)
def test_the_users_files_stand_in_for_no_module(tmp_path: Path) -> None:
    for name in ("queue", "numbers", "edgeswarm"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s')")
    command = own_module("edgeswarm_coordinator.data_server")
    ran = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert "not the settings of a data service" in ran.stderr
