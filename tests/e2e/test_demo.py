"""`edgeswarm demo`, whole: what a newcomer sees first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .commands import EDGESWARM, RunningCommand

pytestmark = pytest.mark.e2e


def test_the_demo_trains_the_digits_and_says_so(tmp_path: Path) -> None:
    command = RunningCommand([EDGESWARM, "demo", "--json"], environment={}, temporary=tmp_path / "temporary")
    children = command.children
    ended = command.end(240)
    assert ended.code == 0, ended.said
    assert json.loads(ended.output)["accuracy"] >= 0.95
    assert "nano-1" in ended.said
    assert "samples/s" in ended.said
    assert not [child for child in children if child.is_running()]
    assert not list((tmp_path / "temporary").glob("edgeswarm*")), "the throw-away cluster's folder is gone"
