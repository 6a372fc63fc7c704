from __future__ import annotations

import pytest

from tests.coordinator.quick_search import search_quickly


@pytest.fixture(autouse=True)
def quick_search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    search_quickly(request, monkeypatch)
