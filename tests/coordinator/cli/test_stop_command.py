"""`edgeswarm stop`, on real processes that stand for trainings. With a real training: tests/e2e/test_detached.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm_coordinator.processes import process_of

from .conftest import Invoke
from .runs import end_run, leave_run

PROGRAM = """
import signal, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["listens"])
def training(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_it_is_asked_to_stop_and_waited_for(home: Path, invoke: Invoke, training: subprocess.Popen[str]) -> None:
    folder = leave_run(home, "digits-1", process=process_of(training.pid))

    def end_it() -> None:
        """What the training itself does before it leaves."""
        training.wait()
        end_run(folder, EdgeswarmError(ErrorCode.INTERRUPTED, "interrupted"))

    result_at_end = threading.Thread(target=end_it)
    result_at_end.start()
    result = invoke("stop")
    result_at_end.join()
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert training.returncode == -signal.SIGTERM
    assert "digits-1" in result.stderr


@pytest.mark.parametrize("training", ["deaf"], indirect=True)
def test_now_kills_what_does_not_listen(home: Path, invoke: Invoke, training: subprocess.Popen[str]) -> None:
    leave_run(home, "digits-1", process=process_of(training.pid))
    result = invoke("stop", "digits", "--now", "--json")
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert training.wait() == -signal.SIGKILL
    assert json.loads(result.stdout) == {
        "job_id": "digits-1",
        "devices": ["nano-1-0a4f22", "nano-2-bbbbbb"],
        "ended_by_itself": False,
    }
    assert "free themselves" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ((), ExitCode.USAGE, "2 trainings run"),
        (("over",), ExitCode.ERROR, "has ended already (done)"),
        (("nobody",), ExitCode.NOTHING_FOUND, "'nobody'"),
        (("far",), ExitCode.NOTHING_FOUND, "runs on another-machine"),
    ],
)
def test_what_cannot_be_stopped(
    arguments: tuple[str, ...], code: ExitCode, named: str, home: Path, invoke: Invoke
) -> None:
    leave_run(home, "over-1", over=True)
    leave_run(home, "far-2", host="another-machine")
    leave_run(home, "digits-3")
    result = invoke("stop", *arguments)
    assert result.exit_code == code
    assert named in result.stderr
    assert "remedy: " in result.stderr


def test_none_runs(invoke: Invoke) -> None:
    result = invoke("stop")
    assert result.exit_code == ExitCode.NOTHING_FOUND
    assert "No training runs here" in result.stderr
