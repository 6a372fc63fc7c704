"""`edgeswarm logs`: the last lines, and what comes after them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.cli import logs_command
from edgeswarm_coordinator.processes import process_of

from .conftest import Invoke
from .runs import end_run, leave_run

SAID = "".join(f"line {number}\n" for number in range(100))


@pytest.mark.parametrize(
    ("arguments", "first", "count"),
    [((), "line 50", 50), (("--lines", "3"), "line 97", 3), (("-n", "0"), "", 0), (("--all",), "line 0", 100)],
)
def test_so_many_of_the_last_lines(
    arguments: tuple[str, ...], first: str, count: int, home: Path, invoke: Invoke
) -> None:
    leave_run(home, "digits-1", over=True, said=SAID)
    lines = invoke("logs", "digits", *arguments).stdout.splitlines()
    assert len(lines) == count
    assert lines[:1] == [first][:count]


def test_the_newest_one_is_meant_where_none_is_named(home: Path, invoke: Invoke) -> None:
    leave_run(home, "digits-1", over=True, said="older\n", age_seconds=200.0)
    leave_run(home, "words-2", over=True, said="newer\n", age_seconds=100.0)
    assert invoke("logs").stdout == "newer\n"


def test_following_ends_with_the_training_and_misses_nothing(
    home: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_command, "_LAST_WORDS_SECONDS", 0.1)  # the process, which is ours, lives on
    folder = leave_run(home, "digits-1", said="line 0\n")

    def train() -> None:
        for number in range(1, 20):
            with (folder / "log.txt").open("a") as log:
                log.write(f"line {number}\n")
            time.sleep(0.02)
        end_run(folder)

    training = threading.Thread(target=train)
    training.start()
    result = invoke("logs", "--follow", "--all")
    training.join()
    assert result.stdout.splitlines() == [f"line {number}" for number in range(20)]


def test_following_waits_for_the_error_that_comes_after_the_end_in_the_record(
    home: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_command, "_LAST_WORDS_SECONDS", 60.0)
    code = "import time; log = open(input(), 'a'); time.sleep(0.3); log.write('error: the disk is full\\n')"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as training:
        folder = leave_run(home, "digits-1", process=process_of(training.pid), over=True, said="line 0\n")
        assert training.stdin is not None
        print(folder / "log.txt", file=training.stdin, flush=True)
        assert invoke("logs", "--follow").stdout.splitlines() == ["line 0", "error: the disk is full"]


def test_a_reader_that_has_enough_is_no_error(home: Path) -> None:
    leave_run(home, "digits-1", over=True, said=SAID * 2000)
    edgeswarm = Path(sys.executable).with_name("edgeswarm")
    environment = {**os.environ, "EDGESWARM_HOME": str(home)}
    with subprocess.Popen(
        [edgeswarm, "logs", "digits", "--all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == "line 0\n"
        command.stdout.close()
        assert command.stderr.read() == ""


def test_a_full_disk_is_not_the_logs_fault(home: Path) -> None:
    leave_run(home, "digits-1", over=True, said=SAID * 2000)
    edgeswarm = Path(sys.executable).with_name("edgeswarm")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [edgeswarm, "logs", "digits", "--all"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "EDGESWARM_HOME": str(home)},
            check=False,
            timeout=60,
        )
    assert ended.returncode == ExitCode.ERROR
    assert ended.stderr.startswith("error: What this command prints or keeps can't be written: No space left")


def test_what_cannot_be_shown(home: Path, invoke: Invoke) -> None:
    nothing = invoke("logs")
    assert nothing.exit_code == ExitCode.NOTHING_FOUND
    assert "edgeswarm train" in nothing.stderr
    folder = leave_run(home, "digits-1", over=True)
    assert invoke("logs", "--all", "--lines", "3").exit_code == ExitCode.USAGE
    (folder / "log.txt").unlink()
    missing = invoke("logs", "digits")
    assert missing.exit_code == ExitCode.USAGE
    assert "log.txt can't be read" in missing.stderr
