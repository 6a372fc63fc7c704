"""Real commands in a real terminal: colours, NO_COLOR, width, and --watch that Ctrl-C ends."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.terminals import CTRL_C, Terminal

from .runs import leave_run
from .test_plan_command import small_instance

COLOUR = re.compile("\x1b\\[(?:\\d+;)*(?:3[0-7]|9[0-7]|38;)")
COMMAND = "from edgeswarm_coordinator.cli import main; main()"


class Open(Protocol):
    def __call__(
        self, program: str, *arguments: str, columns: int = 120, environment: Mapping[str, str] | None = None
    ) -> Terminal: ...


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """`terminal(program, *arguments)` runs Python's `program`; `tmp_path` is its home."""
    opened: list[Terminal] = []
    inherited = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}

    def start(
        program: str, *arguments: str, columns: int = 120, environment: Mapping[str, str] | None = None
    ) -> Terminal:
        opened.append(
            Terminal(
                [sys.executable, "-c", program, *arguments],
                environment={**inherited, "EDGESWARM_HOME": str(tmp_path), **(environment or {})},
                columns=columns,
            )
        )
        return opened[-1]

    yield start
    for command in opened:
        command.close()


PROGRESS = """
import time
from edgeswarm_coordinator.cli.console import progress_console
from edgeswarm_coordinator.cli.progress import Progress
from edgeswarm_coordinator.events import StepDone, StepStarted

with Progress(progress_console()) as progress:
    progress(StepStarted("export model"))
    progress(StepStarted("prepare workers " + "x" * 200))
    time.sleep(0.2)
    progress(StepDone("export model", 0.5))
"""


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_progress_has_colours_unless_they_are_not_wanted(
    environment: dict[str, str], coloured: bool, terminal: Open
) -> None:
    shown = terminal(PROGRESS, environment=environment).end()
    assert "export model" in shown
    assert bool(COLOUR.search(shown)) == coloured


@pytest.mark.parametrize("command", ["plan", "status"])
def test_no_table_has_colours_where_they_are_not_wanted(command: str, terminal: Open, tmp_path: Path) -> None:
    leave_run(tmp_path, "digits-1")
    instance = tmp_path / "instance.json"
    instance.write_text(json.dumps(small_instance()))
    arguments = ("plan", "--instance", str(instance)) if command == "plan" else ("status",)
    shown = terminal(COMMAND, *arguments, columns=200, environment={"NO_COLOR": "1"}).end()
    assert "┃" in shown
    assert not COLOUR.search(shown)


@pytest.mark.parametrize("columns", [40, 80])
def test_the_live_line_stays_within_the_terminal(columns: int, terminal: Open) -> None:
    shown = terminal(PROGRESS, columns=columns).end()
    frames = re.split("[\r\n]", re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown))
    assert any("prepare workers" in frame for frame in frames)
    assert max(len(frame) for frame in frames) <= columns


@pytest.mark.thorough
def test_watch_goes_on_until_ctrl_c_and_leaves_with_exit_code_0(terminal: Open, tmp_path: Path) -> None:
    folder = leave_run(tmp_path, "digits-1")
    watching = terminal(COMMAND, "status", "--watch")
    watching.wait_for("running", times=2)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "round": 13}))
    watching.wait_for("round 13/184")
    watching.press(CTRL_C)
    shown = watching.end()
    assert watching.process.returncode == 0
    assert "error" not in shown
    assert "Traceback" not in shown


def test_following_a_log_ends_with_ctrl_c_and_exit_code_0(terminal: Open, tmp_path: Path) -> None:
    leave_run(tmp_path, "digits-1", said="line 1\n")
    following = terminal(COMMAND, "logs", "--follow")
    following.wait_for("line 1")
    following.press(CTRL_C)
    following.end()
    assert following.process.returncode == 0
