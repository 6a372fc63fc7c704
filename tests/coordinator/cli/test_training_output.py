"""Which streams a training holds, and where they lead: real processes, one of them in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.terminals import Terminal

LETS_GO = """
import os, sys, time
from pathlib import Path
from edgeswarm_coordinator.cli.training_output import TrainingOutput

log, may_end = map(Path, sys.argv[1:])
output = TrainingOutput()
with output:
    output.open_log(log)
    os.write(1, b"before\\n")
    output.log_line("M\\udcfcller")  # of a file whose name is no text
    output.let_go()
    os.write(1, b"after\\n")
    print("printed")
    for _ in range(1000):
        if may_end.exists():
            break
        time.sleep(0.01)
print("the folder")
"""


def test_one_that_has_let_go_holds_no_stream_and_says_all_to_its_log(tmp_path: Path) -> None:
    log, may_end = tmp_path / "log.txt", tmp_path / "may-end"
    with subprocess.Popen(
        [sys.executable, "-c", LETS_GO, str(log), str(may_end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == ""
        assert "before\n" in process.stderr.read()
        assert process.poll() is None, "who reads its output needn't wait for its end"
        may_end.touch()
    assert process.returncode == 0
    assert log.read_text().splitlines() == ["M\\udcfcller", "after", "printed", "the folder"]


HANGS_UP = """
import os, sys, time
from pathlib import Path
from edgeswarm_coordinator.cli.training_output import TrainingOutput

log, document = map(Path, sys.argv[1:])
os.dup2(os.open(document, os.O_WRONLY | os.O_CREAT), 1)
output = TrainingOutput()
with output:
    output.open_log(log)
    os.write(1, b"before\\n")
    output.hang_up()
    for _ in range(1000):
        if "hung up" in log.read_text():
            break
        time.sleep(0.01)
    os.write(1, b"after\\n")
print("the document")
"""


def test_a_file_gets_the_document_alone_though_the_terminal_hangs_up(tmp_path: Path) -> None:
    log, document = tmp_path / "log.txt", tmp_path / "document"
    terminal = Terminal([sys.executable, "-c", HANGS_UP, log, document], environment=os.environ)
    try:
        shown = terminal.end()
    finally:
        terminal.close()
    assert document.read_text() == "the document\n"
    assert "before" in shown
    assert log.read_text().splitlines() == ["the terminal hung up; the training goes on", "after"]
