"""Files that a power cut takes nothing of. That they are on the disk nobody here can see: what is asked of the kernel is."""

from __future__ import annotations

import errno
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


@pytest.mark.parametrize(("code", "is_told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_asked_for_is_no_failure(
    code: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that a virtual machine shares with its host."""

    def refused(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refused)
    if is_told:
        with pytest.raises(OSError, match="Input/output"):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_a_folder_can_be_asked_for_too(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "gone")
