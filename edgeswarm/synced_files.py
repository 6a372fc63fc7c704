"""Files that are on the disk, not only with the kernel, when writing them returns: a power cut takes nothing of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_synced(path: Path, parts: Iterable[bytes]) -> None:
    """Write the parts one behind the other. Raises OSError."""
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The names of what lies in it are on the disk, too. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
