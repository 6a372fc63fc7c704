"""What a newcomer meets first: help, usage errors, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.cli.app import COMMANDS, EXIT_CODE_MEANINGS
from edgeswarm_coordinator.cli.options import PLANNERS
from edgeswarm_coordinator.planner import planners

from .conftest import Invoke

ROOT = Path(__file__).parents[3]
NEWCOMERS_ORDER = ["init", "token", "devices", "plan", "train", "status", "logs", "stop", "demo", "completion"]


def test_help_lists_the_commands_in_a_newcomers_order_and_every_exit_code(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == ExitCode.DONE
    listing = result.stdout.split("Commands:")[1]
    places = [listing.index(f"\n  {name} ") for name in NEWCOMERS_ORDER]
    assert places == sorted(places)
    for code in ExitCode:
        assert f"{code.value}  {EXIT_CODE_MEANINGS[code]}" in listing


def test_the_readme_has_the_same_exit_codes() -> None:
    text = (ROOT / "README.md").read_text()
    for code, meaning in EXIT_CODE_MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in text


@pytest.mark.parametrize("command", [command.name for command in COMMANDS if command.name != "token"])
def test_every_command_has_an_example_in_its_help(command: str, invoke: Invoke) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == ExitCode.DONE
    assert f"  edgeswarm {command}" in result.stdout


def test_every_option_of_train_alone_is_in_an_example(invoke: Invoke) -> None:
    shown = invoke("train", "--help").stdout
    examples = shown.split("Examples:")[1].split("Options:")[0]
    alone = ("epochs", "output", "detach", "resume", "checkpoint-every", "plan", "parts", "wire-dtype", "tensorboard")
    assert [option for option in alone if f"--{option}" not in examples] == []


def test_the_planners_of_the_help_are_those_of_the_registry() -> None:
    assert list(PLANNERS) == list(planners.PLANNERS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fly"], "No such command 'fly'"),
        (["train"], "Missing argument 'JOB'"),
        (["train", "no-such-file.py"], "'no-such-file.py' does not exist"),
        (["train", __file__, "--epochs", "0"], "--epochs"),
        (["train", __file__, "--plan", "no-such-plan.json"], "'no-such-plan.json' does not exist"),
        (["train", __file__, "--plan", __file__, "--micro-batch", "4"], "--micro-batch can't be given beside --plan"),
        (["train", __file__, "--plan", __file__, "--device", "nano"], "--device can't be given beside --plan"),
        (["plan"], "Give a job file or --instance FILE"),
        (["plan", __file__, "--instance", __file__], "Give a job file or --instance FILE"),
        (["plan", __file__, "--planner", "magic"], "'magic' is not one of"),
        (["devices", "--peer", "a:b:c"], "--peer"),
        (["devices", "--wait", "0"], "--wait"),
        (["token", "create", "--uses", "0"], "--uses"),
        (["train", __file__, "--checkpoint-every", "0"], "--checkpoint-every"),
        (["train", __file__, "--wire-dtype", "int8"], "'int8' is not one of"),
        (["logs", "--lines", "-1"], "--lines"),
        (["completion", "powershell"], "'powershell' is not one of"),
    ],
)
def test_a_usage_error_is_one_message_and_exit_code_2(arguments: list[str], named: str, invoke: Invoke) -> None:
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert named in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_with_json_a_usage_error_is_a_document(invoke: Invoke) -> None:
    result = invoke("plan", "--json", "--instance", "no-such-file.json")
    assert result.exit_code == ExitCode.USAGE
    assert "no-such-file.json" in json.loads(result.stdout)["error"]["message"]


def test_a_misspelt_setting_is_named(invoke: Invoke, home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "edgeswarm.toml").write_text("[operator]\npears = []\n")
    result = invoke("devices")
    assert result.exit_code == ExitCode.USAGE
    assert "pears" in result.stderr
    assert "peers" in result.stderr
