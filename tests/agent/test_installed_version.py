from __future__ import annotations

import importlib.metadata
from pathlib import Path

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
    assert installed_version._installed() == installed_version._installed() != ""


def test_other_files_of_the_same_version_are_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "edgeswarm-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: edgeswarm\nVersion: 0.1.0\n")
    found = importlib.metadata.Distribution.at(folder)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)

    def installed(files: str) -> str:
        (folder / "RECORD").write_text(f"{files}edgeswarm/__pycache__/job.cpython-311.pyc,,\n")
        return installed_version._installed()

    first = installed("edgeswarm/job.py,sha256=aaa,10\nedgeswarm-0.1.0.dist-info/direct_url.json,sha256=bbb,20\n")
    again = installed("edgeswarm-0.1.0.dist-info/direct_url.json,sha256=ccc,21\nedgeswarm/job.py,sha256=aaa,10\n")
    other = installed("edgeswarm/job.py,sha256=ddd,11\nedgeswarm-0.1.0.dist-info/direct_url.json,sha256=bbb,20\n")
    assert first.startswith("0.1.0, files ")
    assert first == again != other
    assert other.startswith("0.1.0, files ")
    (folder / "RECORD").unlink()  # some systems' own packages have none
    assert installed_version._installed() == "0.1.0"
