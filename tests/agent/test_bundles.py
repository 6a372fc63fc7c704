"""The job's files as a device keeps them."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.bundles import BundleStore


def archive_of(text: bytes) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("job.py")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()


@pytest.mark.parametrize("damage", [b"", b"no archive"])
def test_one_that_a_power_cut_damaged_is_sent_again(tmp_path: Path, damage: bytes) -> None:
    store = BundleStore(tmp_path / "bundles", device="nano-1")
    sha256, data = archive_of(b"job = 1")
    store.put(sha256, [data])
    (archive,) = (path for path in (tmp_path / "bundles").iterdir() if path.read_bytes() == data)
    archive.write_bytes(damage)
    with pytest.raises(EdgeswarmError) as caught:
        store.unpacked(sha256)
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED
    assert not store.has(sha256)
    store.put(sha256, [data])
    assert (store.unpacked(sha256) / "job.py").read_bytes() == b"job = 1"


def test_what_was_left_unfinished_is_gone_when_the_agent_starts_again(tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    sha256, data = archive_of(b"job = 1")
    BundleStore(folder, device="nano-1").put(sha256, [data])
    (folder / f".{sha256}.1.0").write_bytes(b"half")
    (folder / f".{sha256[:32]}.abc").mkdir()
    (folder / f".{sha256[:32]}.abc" / "job.py").write_bytes(b"half")
    store = BundleStore(folder, device="nano-1")
    assert [path.name for path in folder.iterdir()] == [f"{sha256}.tar"]
    assert store.has(sha256)


def test_it_is_read_by_its_user_alone_and_from_a_disk_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "bundles"
    store = BundleStore(folder, device="nano-1")
    sha256, data = archive_of(b"job = 1")
    store.put(sha256, [data])
    assert folder.stat().st_mode & 0o777 == 0o700
    before = store.unpacked(sha256)

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", read_only)
    assert store.unpacked(sha256) == before


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    sha256, data = archive_of(b"job = 1")
    with pytest.raises(EdgeswarmError, match=r"nano-1 can't keep the job's files in .*: Not a directory") as caught:
        BundleStore(tmp_path / "cache" / "bundles", device="nano-1").put(sha256, [data])
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
