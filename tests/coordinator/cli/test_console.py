"""What the user's code says stays out of the data, in whatever way it says it: real processes with descriptors of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
import os, subprocess, sys
from edgeswarm_coordinator.cli.console import print_json, prints_to_standard_error

with prints_to_standard_error():
    print("by print")
    sys.__stdout__.write("by the stream itself\\n")
    os.write(1, b"by the descriptor\\n")
    os.system("echo by a shell")
    subprocess.run(["echo", "by another program"], check=True)
print_json({"answer": 42})
"""


@pytest.fixture(scope="module")
def said() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.parametrize("way", ["print", "the stream itself", "the descriptor", "a shell", "another program"])
def test_what_the_users_code_says_is_no_data(way: str, said: subprocess.CompletedProcess[str]) -> None:
    assert f"by {way}\n" in said.stderr
    assert json.loads(said.stdout) == {"answer": 42}


STARTED_WITHOUT = """
import os, sys
from edgeswarm_coordinator.cli.console import prints_to_standard_error

with open(sys.argv[1], "w") as file:
    os.dup2(file.fileno(), 1)  # as any file that is opened where the descriptor is free
    with prints_to_standard_error():
        print("said")
        os.write(1, b"kept")
"""


def test_without_a_standard_output_its_descriptor_is_somebody_elses(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh"]
    ran = subprocess.run(
        [*closed, sys.executable, "-c", STARTED_WITHOUT, str(kept)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert (kept.read_text(), ran.stderr) == ("kept", "said\n")
