"""The job's files as a device keeps them."""

from __future__ import annotations

import hashlib
import io
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
