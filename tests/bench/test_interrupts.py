"""An interrupt ends the measurement and not the training alone in which it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.interrupts import ends_all
from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode

ROOT = Path(__file__).parents[2]
MEASURES = """
import time
from bench.measuring import run_as_command

def main():
    try:
        print("measures", flush=True)
        time.sleep(60)
    finally:
        print("cleans up", flush=True)

run_as_command(main)
"""


def interrupted(cancel: threading.Event | None) -> None:
    with ends_all(cancel):
        raise EdgeswarmError(ErrorCode.INTERRUPTED, "Interrupted.")


def test_an_interrupted_training_ends_all() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(None)
    with pytest.raises(KeyboardInterrupt):
        interrupted(threading.Event())


def test_a_training_that_the_measurement_itself_ended_does_not() -> None:
    enough = threading.Event()
    enough.set()
    with pytest.raises(EdgeswarmError):
        interrupted(enough)


def test_a_training_that_fails_does_not() -> None:
    with pytest.raises(EdgeswarmError) as caught, ends_all():
        raise EdgeswarmError(ErrorCode.NO_PLAN_FITS, "No plan fits.")
    assert caught.value.code is ErrorCode.NO_PLAN_FITS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_measurement_that_is_told_to_end_cleans_up(number: signal.Signals) -> None:
    words = [sys.executable, "-c", MEASURES]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "measures\n"
        process.send_signal(number)
        told, problem = process.communicate(timeout=30)
    assert (told, process.returncode) == ("cleans up\n", ExitCode.INTERRUPTED)
    assert problem.endswith("Interrupted.\n")
    assert "Traceback" not in problem
