"""Real commands in a real terminal: colours, NO_COLOR, width, and --watch that Ctrl-C ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .runs import leave_run
from .test_plan_command import small_instance

COLOUR = re.compile("\x1b\\[(?:\\d+;)*(?:3[0-7]|9[0-7]|38;)")
COMMAND = "from edgeswarm_coordinator.cli import main; main()"
CTRL_C = b"\x03"


class InATerminal:
    """One process in a terminal of its own, `columns` wide."""

    def __init__(self, program: str, *arguments: str, home: Path, columns: int = 120, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        inherited = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**inherited, "TERM": "xterm-256color", "EDGESWARM_HOME": str(home), **environment},
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, text: str, *, times: int = 1) -> None:
        while self.shown.count(text) < times:
            part = self._read()
            assert part, f"it ended without {text!r}: {self.shown}"

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> str:
        """All that it has shown."""
        while self._read():
            pass
        self.process.wait()
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> str:
        try:
            part = os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # its other end is closed
            return ""
        self.shown += part
        return part


Open = Callable[..., InATerminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    opened: list[InATerminal] = []

    def start(program: str, *arguments: str, **options: object) -> InATerminal:
        opened.append(InATerminal(program, *arguments, home=tmp_path, **options))  # type: ignore[arg-type]
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
    time.sleep(0.5)
    progress(StepDone("export model", 0.5))
"""


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_progress_has_colours_unless_they_are_not_wanted(
    environment: dict[str, str], coloured: bool, terminal: Open
) -> None:
    shown = terminal(PROGRESS, **environment).end()
    assert "export model" in shown
    assert bool(COLOUR.search(shown)) == coloured


@pytest.mark.parametrize("command", ["plan", "status"])
def test_no_table_has_colours_where_they_are_not_wanted(command: str, terminal: Open, tmp_path: Path) -> None:
    leave_run(tmp_path, "digits-1")
    instance = tmp_path / "instance.json"
    instance.write_text(json.dumps(small_instance()))
    arguments = ("plan", "--instance", str(instance)) if command == "plan" else ("status",)
    shown = terminal(COMMAND, *arguments, columns=200, NO_COLOR="1").end()
    assert "┃" in shown
    assert not COLOUR.search(shown)


@pytest.mark.parametrize("columns", [40, 80])
def test_the_live_line_stays_within_the_terminal(columns: int, terminal: Open) -> None:
    shown = terminal(PROGRESS, columns=columns).end()
    frames = re.split("[\r\n]", re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown))
    assert any("prepare workers" in frame for frame in frames)
    assert max(len(frame) for frame in frames) <= columns


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
