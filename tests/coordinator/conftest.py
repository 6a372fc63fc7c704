from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.config import Folders
from edgeswarm.security.authority import CertificateAuthority, create_cluster

from .quick_search import search_fully, search_quickly


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The operator's, empty."""
    return Folders.within(tmp_path / "home")


@pytest.fixture
def authority(folders: Folders) -> CertificateAuthority:
    """A new cluster whose operator is `folders`."""
    return create_cluster(authority_folder=folders.authority_dir, operator_folder=folders.operator_dir)[0]


@pytest.fixture(autouse=True)
def quick_search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    search_quickly(request, monkeypatch)


@pytest.fixture
def full_search(quick_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a quick test whose outcome may depend on how well was searched."""
    search_fully(monkeypatch)
