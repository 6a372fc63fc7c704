"""docs/settings.md: every setting with its default, and none that isn't there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from edgeswarm.config import AgentSettings, OperatorSettings, load_agent_settings, load_operator_settings

PAGE = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()


def table(name: str) -> dict[str, str]:
    """Key to default, of a section's table."""
    section = PAGE.split(f"## `[{name}]`")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


@pytest.mark.parametrize(("name", "kind"), [("agent", AgentSettings), ("operator", OperatorSettings)])
def test_every_setting_is_there(name: str, kind: type) -> None:
    fields = {field.metadata["key"] or field.name: field.default for field in dataclasses.fields(kind)}
    written = table(name)
    assert set(written) == set(fields)
    for key, default in fields.items():
        if isinstance(default, float | int) and not isinstance(default, bool) and default < 10**6:
            assert float(written[key]) == default, key


def test_the_file_of_the_page_is_read(tmp_path: Path) -> None:
    (block,) = (part for part in re.findall(r"(?:^    .*\n|^\n)+", PAGE, re.MULTILINE) if "[agent]" in part)
    file = tmp_path / "edgeswarm.toml"
    file.write_text(re.sub(r"^    ", "", block, flags=re.MULTILINE))
    agent = load_agent_settings(environment={}, file=file)
    assert (agent.port, agent.memory_limit_bytes, agent.interfaces) == (7700, 4 * 2**30, ("eth0",))
    assert load_operator_settings(environment={}, file=file).peers == ("192.168.1.20:7600",)


def test_several_values_in_a_variable() -> None:
    settings = load_agent_settings(environment={"EDGESWARM_INTERFACES": "eth0,eth1", "EDGESWARM_MEMORY_LIMIT": "1 GB"})
    assert (settings.interfaces, settings.memory_limit_bytes) == (("eth0", "eth1"), 10**9)
