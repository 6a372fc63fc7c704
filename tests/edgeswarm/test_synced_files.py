"""Files that a power cut takes nothing of. That they are on the disk nobody here can see: what is asked of the kernel is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeswarm.synced_files import sync_folder, write_synced


def test_all_parts_are_written_before_the_disk_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sync = os.fsync

    def synced(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    write_synced(tmp_path / "file", (part for part in (b"ab", b"", b"cde")))
    assert (tmp_path / "file").read_bytes() == b"abcde"
    assert sizes == [5]


def test_a_folder_can_be_asked_for_too(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "gone")
