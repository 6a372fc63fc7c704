from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeswarm.process_memory import anonymous_bytes, give_back_free_memory
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm_agent.worker import sample_cache
from edgeswarm_agent.worker.sample_cache import (
    DiskStore,
    KeptSamples,
    MemoryStore,
    SampleCache,
    StorePart,
    lies_in_memory,
)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def disk(tmp_path: Path, said: list[str]) -> DiskStore:
    return DiskStore(tmp_path, limit_bytes=10**6, log=said.append, least_free_share=0.0, least_free_bytes=0)


def piece(indices: list[int]) -> bytearray:
    """Samples whose shapes differ by turns, so that they are blocks of unequal numbers of rows."""
    return bytearray(
        encode_items([(torch.full((1 + index % 3,), index), str(index)) for index in indices], SamplePart.BOTH)
    )


def is_sound(found: dict[int, Any], indices: list[int]) -> bool:
    items = {index: block.item(row) for index, (block, row) in found.items()}
    return list(items) == indices and all(
        torch.equal(tensor, torch.full((1 + index % 3,), index)) and text == str(index)
        for index, (tensor, text) in items.items()
    )


def stores(folder: Path) -> Iterator[Any]:
    yield MemoryStore()
    yield DiskStore(folder, limit_bytes=10**9, log=print, least_free_share=0.0, least_free_bytes=0)


def test_what_was_added_is_found_again_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = random.Random(3).sample(range(1000), 300)
    for decoded in (24576, 5):  # all blocks stay decoded, or hardly any
        monkeypatch.setattr(sample_cache, "_DECODED_PARTS", decoded)
        for store in stores(tmp_path):
            kept = KeptSamples(store)
            for first in range(0, 300, 50):
                wanted = order[first : first + 50]
                assert kept.find(wanted) == {}
                assert is_sound(kept.add(wanted, piece(wanted)), wanted)
            shuffled = random.Random(4).sample(order, 300)
            assert is_sound(kept.find(shuffled), shuffled)
            absent = next(index for index in range(1000) if index not in order)
            assert list(kept.find([absent, order[0], 10**6])) == [order[0]]


def test_wrong_data_are_refused_and_not_remembered(disk: DiskStore) -> None:
    kept = KeptSamples(disk)
    for data in (bytearray(100), piece([1, 2])):
        with pytest.raises(ValueError, match=r"\w"):
            kept.add([1, 2, 3], data)
    assert kept.find([1, 2, 3]) == {}


def test_the_files_have_no_name(disk: DiskStore, tmp_path: Path) -> None:
    kept = disk.keep(bytearray(b"abc" * 1000))
    assert kept is not None
    assert bytes(kept) == b"abc" * 1000
    assert list(tmp_path.iterdir()) == []


def test_pieces_larger_than_a_file_and_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache, "FILE_BYTES", 10_000)
    _, disk = stores(tmp_path)
    pieces = [bytearray(os.urandom(size)) for size in (1, 9_000, 900, 50_000, 64, 10_000)]
    kept = [disk.keep(data) for data in pieces]
    assert [bytes(view) for view in kept] == pieces
    assert disk.bytes == sum(map(len, pieces))


def test_at_its_limit_it_stops_and_says_so_once(disk: DiskStore, said: list[str]) -> None:
    assert disk.keep(bytearray(900_000)) is not None
    for _ in range(3):
        assert disk.keep(bytearray(200_000)) is None
    assert len(said) == 1
    assert "the limit of 1 MB is reached" in said[0]


def test_it_leaves_a_part_of_the_disk_free(tmp_path: Path, said: list[str]) -> None:
    disk = DiskStore(tmp_path, limit_bytes=10**9, log=said.append, least_free_share=1.0)
    assert disk.keep(bytearray(10)) is None
    assert "of the disk would stay free" in said[0]


def test_a_full_disk_ends_the_keeping_and_nothing_else(
    disk: DiskStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write, room = KeptSamples(disk), os.pwrite, 5000

    def small_disk(descriptor: int, data: Any, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: room - offset], offset)

    monkeypatch.setattr(os, "pwrite", small_disk)
    pieces = [list(range(first, first + 9)) for first in range(0, 90, 9)]
    for indices in pieces:
        assert is_sound(kept.add(indices, piece(indices)), indices)
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert is_sound(kept.find(pieces[0]), pieces[0])
    assert kept.find(pieces[-1]) == {}


def test_without_a_folder_a_little_is_kept_in_memory(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").write_text("in its place")
    cache = SampleCache(tmp_path / "file" / "samples", limit_bytes=10**9, log=said.append)
    kept = cache.kept("job", 0, 0)
    kept.add([3], piece([3]))
    assert is_sound(kept.find([3]), [3])
    assert len(said) == 1
    assert "kept in memory, 256 MiB at most" in said[0]
    assert MemoryStore(5).keep(bytearray(6)) is None


def test_sets_and_parts_are_kept_apart(tmp_path: Path) -> None:
    cache = SampleCache(tmp_path / "new" / "samples", limit_bytes=10**9)
    cache.kept("job", 0, 0).add([3], piece([3]))
    assert list(cache.kept("job", 0, 0).find([3])) == [3]
    for other in (("job", 1, 0), ("job", 0, 1), ("another", 0, 0)):
        assert cache.kept(*other).find([3]) == {}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="has no folder in memory")
def test_a_folder_in_memory_is_known(tmp_path: Path) -> None:
    assert lies_in_memory(Path("/dev/shm"))
    assert not lies_in_memory(Path("/proc"))


def test_a_killed_process_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from edgeswarm_agent.worker.sample_cache import DiskStore\n"
        "store = DiskStore(Path(sys.argv[1]), limit_bytes=10**9, log=print, least_free_share=0, least_free_bytes=0)\n"
        "assert store.keep(bytearray(10**6)) is not None\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True)
    assert (ran.returncode, ran.stderr) == (-9, b"")
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_is_no_memory_of_the_process(tmp_path: Path) -> None:
    if lies_in_memory(tmp_path):
        pytest.skip("temporary files lie in memory here")
    kept = KeptSamples(DiskStore(tmp_path, limit_bytes=10**9, log=print, least_free_share=0.0, least_free_bytes=0))
    rows, row_bytes = 64, 65_536

    def item(index: int) -> torch.Tensor:
        return torch.full((row_bytes,), index % 251, dtype=torch.uint8)

    def fetch(first: int) -> None:
        indices = list(range(first, first + rows))
        kept.add(indices, bytearray(encode_items([(item(index), index) for index in indices], SamplePart.BOTH)))

    fetch(0)
    give_back_free_memory()
    before = anonymous_bytes()
    for first in range(rows, 40 * rows, rows):
        fetch(first)
    for index in random.Random(1).sample(range(40 * rows), 500):
        block, row = kept.find([index])[index]
        found: Any = block.item(row)
        assert torch.equal(found[0], item(index))
        assert found[1] == index
    give_back_free_memory()
    assert anonymous_bytes() - before < 25e6  # of 168 MB


def test_a_part_of_a_store_has_a_limit_of_its_own(disk: DiskStore, said: list[str]) -> None:
    part = StorePart(disk, limit_bytes=100)
    first = part.keep(bytearray(b"a" * 60))
    assert first is not None
    assert bytes(first) == b"a" * 60
    assert not part.is_full
    assert part.keep(bytearray(60)) is None
    assert part.is_full
    assert part.keep(bytearray(1)) is None
    assert said == []
    assert disk.keep(bytearray(1000)) is not None
    whole = StorePart(disk, limit_bytes=10**9)
    assert whole.keep(bytearray(10**6)) is None
    assert whole.is_full
