"""What `edgeswarm-agent doctor` says of the processor or card; the whole command is in test_cli.py."""

from __future__ import annotations

import pytest

from edgeswarm.config import AgentSettings
from edgeswarm_agent import doctor


@pytest.mark.parametrize(("guessed", "level"), [("cuda", "warning"), ("cpu", "ok")])
def test_a_card_that_torch_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch, guessed: str, level: str) -> None:
    monkeypatch.setattr(doctor, "guess_accelerator", lambda torch: guessed)
    settings = AgentSettings(threads=3)
    found = doctor._computes(settings, version="2.13.0", accelerator="cpu", remedy="Install another one.")
    assert found.level == level
    assert found.message.startswith("2.13.0, 3 threads, cpu")
    assert ("can't use the graphics card" in found.message) == (level == "warning")
    assert bool(found.remedy) == (level == "warning")
