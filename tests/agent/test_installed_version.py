from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent import installed_version
from edgeswarm_agent.installed_version import InstalledVersion

from .called_agent import StartAgent


def test_an_agent_takes_no_job_once_another_version_is_installed(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_agent()
    agent.reserve()
    agent.release()
    monkeypatch.setattr(installed_version, "_installed", lambda: "9.9.9")
    with pytest.raises(EdgeswarmError) as caught:
        agent.reserve("digits-2")
    assert caught.value.code is ErrorCode.VERSION_DIFFERS
    assert agent.node_id in caught.value.message
    assert "9.9.9" in caught.value.message
    assert agent.describe().busy_with_job == ""


@pytest.mark.parametrize(("at_start", "later"), [("1.0", "1.0"), ("1.0", ""), ("", "1.0")])
def test_the_same_version_or_none_is_no_other_one(monkeypatch: pytest.MonkeyPatch, at_start: str, later: str) -> None:
    monkeypatch.setattr(installed_version, "_installed", lambda: at_start)
    version = InstalledVersion("nano-1-0a0a0a")
    monkeypatch.setattr(installed_version, "_installed", lambda: later)
    version.refuse_another()


def test_the_installed_package_is_found() -> None:
    assert installed_version._installed()
