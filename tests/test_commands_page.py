"""docs/commands.md has every command and every option of both programs, and says nothing of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_agent.cli import cli as edgeswarm_agent
from edgeswarm_coordinator.cli.app import edgeswarm

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
PROGRAMS = {"edgeswarm": edgeswarm, "edgeswarm-agent": edgeswarm_agent}
# Where a section says that a command takes the options of another one, too.
TAKES_OPTIONS_OF = {
    "edgeswarm plan": ("edgeswarm devices",),
    "edgeswarm simulate": ("edgeswarm devices", "edgeswarm plan"),
    "edgeswarm train": ("edgeswarm devices", "edgeswarm plan"),
    "edgeswarm-agent doctor": ("edgeswarm-agent run", "edgeswarm-agent join"),
}


def commands_of(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, those inside groups as well; groups whose commands stand for them left out."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for sub_name, sub_command in command.commands.items():
        yield from commands_of(f"{name} {sub_name}", sub_command)


COMMANDS = dict(pair for name, program in PROGRAMS.items() for pair in commands_of(name, program))


def sections() -> dict[str, str]:
    """The text below each heading of a command."""
    parts = re.split(r"^### (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {heading: text.split("\n## ")[0] for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
    }


def test_there_is_a_section_for_each_command_in_their_order() -> None:
    assert list(sections()) == [
        *(name for name in COMMANDS if name.startswith("edgeswarm ")),
        "edgeswarm-agent join",
        "edgeswarm-agent run",
        "edgeswarm-agent doctor",
        "edgeswarm-agent completion",
    ]
    assert set(sections()) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_the_section_and_no_other(name: str) -> None:
    text = sections()[name]
    with_others = text + "".join(sections()[other] for other in TAKES_OPTIONS_OF.get(name, ()))
    options = options_of(COMMANDS[name])
    missing = [option for option in sorted(options) if not re.search(rf"`{option}[ `]", with_others)]
    assert missing == []
    in_the_table = {option for row in text.splitlines() if row.startswith("| `-") for option in option_names(row)}
    assert in_the_table - options == set()


@pytest.mark.parametrize("name", TAKES_OPTIONS_OF)
def test_where_it_takes_the_options_of_another_one_the_others_are_named(name: str) -> None:
    """A section says `takes the options of ... but`: what it doesn't take stands there, too."""
    text = sections()[name]
    said = [other for other in TAKES_OPTIONS_OF[name] if re.search(rf"options of\s+`{other.split()[-1]}`", text)]
    of_others = {option for other in said for option in options_of(COMMANDS[other])}
    lacking = {option for option in of_others if option.startswith("--")} - options_of(COMMANDS[name])
    assert {option for option in lacking if not re.search(rf"`{option}[ `]", text)} == set()


def option_names(row: str) -> list[str]:
    """The options that the first cell of a row of a table names."""
    return re.findall(r"`(--?[a-z-]+)", row.split("|")[1])


def test_every_exit_code_stands_in_the_page() -> None:
    for code in ExitCode:
        assert f"\n| {code.value} |" in PAGE.read_text()
