from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.config import Folders
from edgeswarm.security.authority import CertificateAuthority, create_cluster


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The operator's, empty."""
    return Folders.within(tmp_path / "home")


@pytest.fixture
def authority(folders: Folders) -> CertificateAuthority:
    """A new cluster whose operator is `folders`."""
    return create_cluster(authority_folder=folders.authority_dir, operator_folder=folders.operator_dir)[0]
