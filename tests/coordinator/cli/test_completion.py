"""Completion, asked for as a shell asks; and that asking is quick. One process answers for all lines of a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edgeswarm_agent.cli import cli as agent
from edgeswarm_coordinator.cli.app import edgeswarm

from .conftest import Invoke
from .runs import leave_run

PROGRAMS = {"edgeswarm": "edgeswarm_coordinator.cli", "edgeswarm-agent": "edgeswarm_agent.cli"}
COMMANDS: dict[str, click.Command] = {"edgeswarm": edgeswarm, "edgeswarm-agent": agent}
# What a command that only looks at its own words must not load. rich and cryptography are slow on a small box.
HEAVY = ("torch", "numpy", "grpc", "rich", "cryptography", "zeroconf", "psutil")
END = "ended with"
RUN = """
import os, sys
from {module} import main
for environment in {environments}:
    os.environ.update(environment)
    sys.argv = {arguments}
    try:
        main()
    except SystemExit as end:
        print("{end}", end.code)
heavy = set({heavy}) & set(sys.modules)
print("heavy:", sorted(heavy), file=sys.stderr)
"""


def run(program: str, *arguments: str, environments: tuple[Mapping[str, str], ...]) -> subprocess.CompletedProcess[str]:
    """The program once with each of these environments, in one process. It says how each of them ended."""
    script = RUN.format(
        module=PROGRAMS[program],
        environments=[dict(environment) for environment in environments],
        arguments=[program, *arguments],
        end=END,
        heavy=HEAVY,
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def completed(program: str, *asked: tuple[str, Path]) -> list[list[str]]:
    """For each line and its home, what may stand for the last word; "file" where the shell is to look for files."""
    environments = tuple(
        {
            "EDGESWARM_HOME": str(home),
            f"_{program.replace('-', '_').upper()}_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        for words, home in asked
    )
    finished = run(program, environments=environments)
    assert finished.returncode == 0, finished.stderr
    assert "heavy: []" in finished.stderr, finished.stderr
    *answers, rest = finished.stdout.split(f"{END} 0\n")
    assert (len(answers), rest) == (len(asked), ""), finished.stdout
    lines = [[line.split(",", 1) for line in answer.splitlines() if line] for answer in answers]
    return [[kind if kind in ("file", "dir") else value for kind, value in of_one] for of_one in lines]


LINES = {
    "edgeswarm": {
        "edgeswarm st": {"status", "stop"},
        "edgeswarm train --wa": {"--wait"},
        "edgeswarm train --wire-dtype b": {"bfloat16"},
        "edgeswarm train ": {"file"},
        "edgeswarm plan --planner p": {"pipeline", "pipedream"},
        "edgeswarm completion ": {"bash", "zsh", "fish"},
    },
    "edgeswarm-agent": {
        "edgeswarm-agent ": {"run", "join", "doctor", "completion"},
        "edgeswarm-agent run --thr": {"--threads"},
    },
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_options_choices_and_files(program: str, tmp_path: Path) -> None:
    answers = completed(program, *((line, tmp_path) for line in LINES[program]))
    assert dict(zip(LINES[program], map(set, answers), strict=True)) == LINES[program]


def test_ids_of_trainings(tmp_path: Path) -> None:
    leave_run(tmp_path, "digits-1")
    leave_run(tmp_path, "digits-2", over=True)
    leave_run(tmp_path, "words-3")
    stop, logs, status, nobodys = completed(
        "edgeswarm",
        ("edgeswarm stop ", tmp_path),
        ("edgeswarm logs di", tmp_path),
        ("edgeswarm status ", tmp_path),
        ("edgeswarm stop ", tmp_path / "nobody"),
    )
    assert set(stop) == {"digits-1", "words-3"}
    assert set(logs) == {"digits-1", "digits-2"}
    assert set(status) == {"digits-1", "digits-2", "words-3"}
    assert nobodys == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_quick(program: str, tmp_path: Path) -> None:
    finished = run(program, "--help", environments=({"EDGESWARM_HOME": str(tmp_path)},))
    assert finished.returncode == 0
    assert finished.stdout.startswith(f"Usage: {program}")
    assert finished.stdout.endswith(f"{END} 0\n")
    assert "heavy: []" in finished.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_script_asks_the_right_program(program: str, shell: str) -> None:
    finished = CliRunner().invoke(COMMANDS[program], ["completion", shell])
    assert finished.exit_code == 0
    assert f"_{program.replace('-', '_').upper()}_COMPLETE={shell}_complete" in finished.stdout
    assert f" {program}" in finished.stdout


def test_bash_reads_the_script(tmp_path: Path, invoke: Invoke) -> None:
    script = tmp_path / "script"
    script.write_text(invoke("completion", "bash").stdout)
    finished = subprocess.run(
        ["bash", "-c", f"source {script} && complete -p edgeswarm"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "_edgeswarm_completion" in finished.stdout


def test_its_help_says_where_to_put_it(invoke: Invoke) -> None:
    shown = invoke("completion", "--help").stdout
    for place in ("bash-completion/completions/edgeswarm", "~/.zfunc/_edgeswarm", "fish/completions/edgeswarm.fish"):
        assert place in shown
