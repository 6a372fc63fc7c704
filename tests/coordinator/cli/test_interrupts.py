"""Ctrl-C once and twice, in a real process with real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edgeswarm.errors import ExitCode

PROGRAM = """
import sys
from edgeswarm_coordinator.cli.interrupts import cancelled_by_signals

with cancelled_by_signals("cleaning up") as cancel:
    print("working", flush=True)
    cancel.wait(60)
    print("cancelled", flush=True)
    if {slow_clean_up}:
        sys.stdin.readline()
print("done", flush=True)
"""


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(slow_clean_up=request.param)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("program", [False], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_sets_the_event(number: signal.Signals, program: subprocess.Popen[str]) -> None:
    assert next_line(program) == "working"
    program.send_signal(number)
    assert next_line(program) == "cancelled"
    assert next_line(program) == "done"
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 0
    assert "stopping: cleaning up" in errors


@pytest.mark.parametrize("program", [True], indirect=True)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_it_stops_leaves_at_once(first: signal.Signals, program: subprocess.Popen[str]) -> None:
    assert next_line(program) == "working"
    program.send_signal(first)
    assert next_line(program) == "cancelled"
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=30) == ExitCode.INTERRUPTED
    assert next_line(program) == ""


@pytest.mark.parametrize("program", [True], indirect=True)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGHUP])
def test_who_asks_it_again_to_stop_lets_it_clean_up(
    first: signal.Signals, again: signal.Signals, program: subprocess.Popen[str]
) -> None:
    """`edgeswarm stop` twice, or after Ctrl-C."""
    assert next_line(program) == "working"
    program.send_signal(first)
    assert next_line(program) == "cancelled"
    program.send_signal(again)
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    assert next_line(program) == "done"
    assert program.wait(timeout=30) == 0


@pytest.mark.parametrize("program", [False], indirect=True)
def test_it_is_heard_where_nobody_reads_what_it_says(program: subprocess.Popen[str]) -> None:
    assert next_line(program) == "working"
    assert program.stderr is not None
    program.stderr.close()
    program.stderr = None  # for `communicate`
    program.send_signal(signal.SIGTERM)
    assert next_line(program) == "cancelled"
    assert next_line(program) == "done"
