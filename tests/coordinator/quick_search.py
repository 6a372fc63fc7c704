"""The planner's search with little effort, for tests that don't ask how good a plan is."""

from __future__ import annotations

import pytest

from edgeswarm_coordinator.planner.search import edgeswarm
from edgeswarm_coordinator.planner.search.effort import Effort, usual_effort

QUICK = Effort(budget=8_000.0)
# Tests that aren't the quick ones have the time, and see what a user gets.
_WITH_FULL_EFFORT = ("e2e", "root", "thorough", "soak")


def search_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a search that is told no effort takes QUICK, where the test is a quick one."""
    if not any(request.node.get_closest_marker(name) for name in _WITH_FULL_EFFORT):
        monkeypatch.setattr(edgeswarm, "usual_effort", lambda _problem: QUICK)


def search_fully(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's search."""
    monkeypatch.setattr(edgeswarm, "usual_effort", usual_effort)
