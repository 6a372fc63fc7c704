"""Completion, asked for as a shell asks; and that asking is quick. Each answer comes from a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Invoke
from .runs import leave_run

PROGRAMS = {"edgeswarm": "edgeswarm_coordinator.cli", "edgeswarm-agent": "edgeswarm_agent.cli"}
# What a command that only looks at its own words must not load. rich and cryptography are slow on a small box.
HEAVY = ("torch", "numpy", "grpc", "rich", "cryptography", "zeroconf", "psutil")
RUN = """
import sys
sys.argv = {arguments}
from {module} import main
try:
    main()
finally:
    heavy = set({heavy}) & set(sys.modules)
    print("heavy:", sorted(heavy), file=sys.stderr)
"""


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = RUN.format(arguments=[program, *arguments], module=PROGRAMS[program], heavy=HEAVY)
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def completed(words: str, home: Path) -> list[str]:
    """What may stand for the last word; "file" where the shell is to look for files."""
    program, *_ = words.split()
    finished = run(
        program,
        EDGESWARM_HOME=str(home),
        **{f"_{program.replace('-', '_').upper()}_COMPLETE": "bash_complete"},
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    assert finished.returncode == 0, finished.stderr
    assert "heavy: []" in finished.stderr, finished.stderr
    answers = [line.split(",", 1) for line in finished.stdout.splitlines() if line]
    return [kind if kind in ("file", "dir") else value for kind, value in answers]


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("edgeswarm st", ["status", "stop"]),
        ("edgeswarm train --wa", ["--wait"]),
        ("edgeswarm train --wire-dtype b", ["bfloat16"]),
        ("edgeswarm train ", ["file"]),
        ("edgeswarm plan --planner p", ["pipeline", "pipedream"]),
        ("edgeswarm completion ", ["bash", "zsh", "fish"]),
        ("edgeswarm-agent ", ["run", "join", "doctor", "completion"]),
        ("edgeswarm-agent run --thr", ["--threads"]),
    ],
)
def test_commands_options_choices_and_files(words: str, among: list[str], tmp_path: Path) -> None:
    assert set(completed(words, tmp_path)) == set(among)


def test_ids_of_trainings(tmp_path: Path) -> None:
    leave_run(tmp_path, "digits-1")
    leave_run(tmp_path, "digits-2", over=True)
    leave_run(tmp_path, "words-3")
    assert set(completed("edgeswarm stop ", tmp_path)) == {"digits-1", "words-3"}
    assert set(completed("edgeswarm logs di", tmp_path)) == {"digits-1", "digits-2"}
    assert set(completed("edgeswarm status ", tmp_path)) == {"digits-1", "digits-2", "words-3"}
    assert completed("edgeswarm stop ", tmp_path / "nobody") == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_quick(program: str, tmp_path: Path) -> None:
    finished = run(program, "--help", EDGESWARM_HOME=str(tmp_path))
    assert finished.returncode == 0
    assert finished.stdout.startswith(f"Usage: {program}")
    assert "heavy: []" in finished.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_script_asks_the_right_program(program: str, shell: str) -> None:
    finished = run(program, "completion", shell)
    assert finished.returncode == 0
    assert f"_{program.replace('-', '_').upper()}_COMPLETE={shell}_complete" in finished.stdout
    assert f" {program}" in finished.stdout


def test_bash_reads_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(run("edgeswarm", "completion", "bash").stdout)
    finished = subprocess.run(
        ["bash", "-c", f"source {script} && complete -p edgeswarm"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "_edgeswarm_completion" in finished.stdout


def test_its_help_says_where_to_put_it(invoke: Invoke) -> None:
    shown = invoke("completion", "--help").stdout
    for place in ("bash-completion/completions/edgeswarm", "~/.zfunc/_edgeswarm", "fish/completions/edgeswarm.fish"):
        assert place in shown
