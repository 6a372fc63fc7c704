"""The command line in this process, in a home of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgeswarm_coordinator.cli.app import edgeswarm

Invoke = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("EDGESWARM_HOME", str(folder))
    return folder


@pytest.fixture
def invoke(home: Path) -> Invoke:
    """`invoke("plan", "job.py")` runs the command; standard output and error come apart."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(edgeswarm, list(arguments))

    return run
