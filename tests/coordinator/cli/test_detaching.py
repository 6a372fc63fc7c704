"""What waits in the foreground while a training begins in the background: real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DETACHES = """
import os, sys, time
from pathlib import Path

import click
from edgeswarm_coordinator.cli.detaching import go_to_background

may_end = Path(sys.argv[1])

def wait():
    for _ in range(6000):
        if may_end.exists():
            break
        time.sleep(0.01)
    os._exit(0)

try:
    announcement = go_to_background(as_json=True)
except click.exceptions.Exit as request:
    sys.exit(request.exit_code)
if os.fork() == 0:
    wait()  # as a pool of processes that the job file makes
announcement.tell({"job_id": "digits"})
wait()
"""


def test_what_the_jobs_code_forks_keeps_nobody_waiting(tmp_path: Path) -> None:
    may_end, output = tmp_path / "may-end", tmp_path / "output"
    try:
        with output.open("w") as file:
            # Its streams are the background's, too: a pipe would have no end before that has.
            command = [sys.executable, "-c", DETACHES, str(may_end)]
            ran = subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=False, timeout=30)
    finally:
        may_end.touch()
    assert ran.returncode == 0
    assert json.loads(output.read_text()) == {"job_id": "digits"}
