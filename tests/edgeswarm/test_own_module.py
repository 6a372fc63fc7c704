from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeswarm.own_module import own_lines, own_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's, with modules that are called as others are."""
    for name in ("queue", "numbers", "edgeswarm"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s')")
    return tmp_path


def run(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("version", [(3, 10), sys.version_info])
def test_the_users_files_stand_in_for_no_module(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: tuple[int, ...]
) -> None:
    with monkeypatch.context() as older:
        older.setattr(sys, "version_info", version)
        command = own_module("edgeswarm_coordinator.data_server")
    assert "not the settings of a data service" in run(command, folder).stderr


def test_nor_for_what_a_few_lines_import(folder: Path) -> None:
    assert run(own_lines("import queue, numbers, edgeswarm; print(queue.Queue)"), folder).returncode == 0
