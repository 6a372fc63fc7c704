"""What a worker keeps of the samples that it fetched, so that later epochs need no network.

    fetched bytes ── pwrite ──> files without a name, 256 MiB each ── mmap ──> blocks, whose columns are views of the maps

The page cache decides what of it lies in memory: nothing here is memory of the process's own but an entry of 8 bytes for
each sample. The files have no name from their beginning, so the system removes them with the process, however it ends.
Where there is no disk to write to, a little is kept in memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from edgeswarm.wire.tensor_samples import SampleBlock, decode_blocks

MEMORY_BYTES = 256 * 1024**2
# What stays free on the disk, whatever the limit: for the system, and for snapshots.
LEAST_FREE_SHARE = 0.1
LEAST_FREE_BYTES = 1024**3
FILE_BYTES = 256 * 1024**2
# Tensors begin at multiples of their size: of 8 bytes at most, and of whole cache lines for speed.
_ALIGNMENT = 64
# A decoded block and each of its columns are about a KiB of Python objects; more than these are decoded again when needed.
_DECODED_PARTS = 24576
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")

Place = tuple[SampleBlock, int]


class ByteStore(Protocol):
    """Keeps pieces of bytes. Any thread may call."""

    def keep(self, data: bytearray) -> memoryview | None:
        """The same bytes where they are kept, or None where there is no room for them."""


class MemoryStore:
    """Keeps as much as its budget allows."""

    def __init__(self, limit_bytes: int = MEMORY_BYTES) -> None:
        self._left_bytes = limit_bytes
        self._lock = threading.Lock()

    def keep(self, data: bytearray) -> memoryview | None:
        with self._lock:
            if len(data) > self._left_bytes:
                return None
            self._left_bytes -= len(data)
        return memoryview(data)


class DiskStore:
    """Keeps pieces in files without a name in `folder`. When the disk is full or fails it stops, and says so once.

    limit_bytes: how much at most. least_free_share, least_free_bytes: how much of the disk stays free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        log: Callable[[str], None],
        least_free_share: float = LEAST_FREE_SHARE,
        least_free_bytes: int = LEAST_FREE_BYTES,
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._log = log
        self._least_free_share = least_free_share
        self._least_free_bytes = least_free_bytes
        self._lock = threading.Lock()
        self._file_descriptor = -1
        self._map: memoryview | None = None
        self._end = 0
        self._stopped = False
        self.bytes = 0

    def keep(self, data: bytearray) -> memoryview | None:
        with self._lock:
            if self._stopped:
                return None
            try:
                why = self._why_no_room(len(data))
                if not why:
                    return self._write(data)
            except OSError as error:
                why = f"the disk refuses more: {error.strerror or error}"
            self._stopped = True
        self._log(
            f"{self.bytes / 1e6:.0f} MB of samples are kept in {self._folder}, and no more from now on: {why}. "
            "Training goes on; other samples are fetched again in each epoch."
        )
        return None

    def _why_no_room(self, size: int) -> str:
        if self.bytes + size > self._limit_bytes:
            return f"the limit of {self._limit_bytes / 1e6:.0f} MB is reached (sample_cache in edgeswarm.toml)"
        disk = os.statvfs(self._folder)
        reserve = max(self._least_free_bytes, self._least_free_share * disk.f_blocks * disk.f_frsize)
        if disk.f_bavail * disk.f_frsize - size < reserve:
            return f"only {reserve / 1e6:.0f} MB of the disk would stay free"
        return ""

    def _write(self, data: bytearray) -> memoryview:
        if self._map is None or self._end + len(data) > len(self._map):
            self._open_file(max(FILE_BYTES, len(data)))
        assert self._map is not None
        first, end = self._end, self._end + len(data)
        # Written and not copied into the map: a full disk is then an error and not a signal that ends the process.
        view, written = memoryview(data), 0
        while written < len(data):
            written += os.pwrite(self._file_descriptor, view[written:], first + written)
        self._end = -(-end // _ALIGNMENT) * _ALIGNMENT
        self.bytes += len(data)
        return self._map[first:end]

    def _open_file(self, size: int) -> None:
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            os.ftruncate(file.fileno(), size)
            mapped = memoryview(mmap.mmap(file.fileno(), size))
            descriptor = os.dup(file.fileno())
        if self._file_descriptor >= 0:
            os.close(self._file_descriptor)
        self._file_descriptor, self._map, self._end = descriptor, mapped, 0


class StorePart:
    """A part of a store, with a limit of its own. is_full: something had no room."""

    def __init__(self, store: ByteStore, *, limit_bytes: int) -> None:
        self._store = store
        self._left_bytes = limit_bytes
        self._lock = threading.Lock()
        self.is_full = False

    def keep(self, data: bytearray) -> memoryview | None:
        with self._lock:
            self.is_full = self.is_full or len(data) > self._left_bytes
            if self.is_full:
                return None
            self._left_bytes -= len(data)
        kept = self._store.keep(data)
        self.is_full = self.is_full or kept is None
        return kept


class KeptSamples:
    """Which samples of one set, or one part of each, are kept, and where. Any thread may call."""

    def __init__(self, store: ByteStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pieces: list[memoryview] = []
        # By index into the data set: the piece that the sample is in (-1: in none), and its row there.
        self._piece_of = np.empty(0, dtype=np.int32)
        self._row_of = np.empty(0, dtype=np.int32)
        self._decoded: OrderedDict[int, list[SampleBlock]] = OrderedDict()
        self._decoded_parts = 0

    def find(self, indices: Sequence[int]) -> dict[int, Place]:
        """The places of those that are kept."""
        with self._lock:
            known = [index for index in indices if index < len(self._piece_of) and self._piece_of[index] >= 0]
            return {index: self._place(int(self._piece_of[index]), int(self._row_of[index])) for index in known}

    def add(self, indices: Sequence[int], data: bytearray) -> dict[int, Place]:
        """Keeps the samples of these indices, which `data` holds in this order, where there is room; their places.

        Raises ValueError for data that hold other than as many samples.
        """
        kept = self._store.keep(data)
        blocks = decode_blocks(data if kept is None else kept)
        places = [(block, row) for block in blocks for row in range(block.rows)]
        if len(places) != len(indices):
            raise ValueError(f"{len(places)} samples came where {len(indices)} were asked for")
        if kept is not None:
            with self._lock:
                self._pieces.append(kept)
                self._make_room(max(indices, default=-1) + 1)
                self._piece_of[indices] = len(self._pieces) - 1
                self._row_of[indices] = np.arange(len(indices))
                self._remember(len(self._pieces) - 1, blocks)
        return dict(zip(indices, places, strict=True))

    def _place(self, piece: int, row: int) -> Place:
        blocks = self._decoded.get(piece)
        if blocks is None:
            blocks = decode_blocks(self._pieces[piece])
            self._remember(piece, blocks)
        self._decoded.move_to_end(piece)
        if len(blocks) == 1:
            return blocks[0], row
        ends = list(accumulate(block.rows for block in blocks))
        number = bisect_right(ends, row)
        return blocks[number], row - (ends[number - 1] if number else 0)

    def _remember(self, piece: int, blocks: list[SampleBlock]) -> None:
        self._decoded[piece] = blocks
        self._decoded_parts += _parts(blocks)
        while self._decoded_parts > _DECODED_PARTS and len(self._decoded) > 1:
            self._decoded_parts -= _parts(self._decoded.popitem(last=False)[1])

    def _make_room(self, length: int) -> None:
        more = length - len(self._piece_of)
        if more > 0:
            more = max(more, len(self._piece_of) // 4)
            self._piece_of = np.concatenate([self._piece_of, np.full(more, -1, dtype=np.int32)])
            self._row_of = np.concatenate([self._row_of, np.zeros(more, dtype=np.int32)])


def _parts(blocks: list[SampleBlock]) -> int:
    return sum(1 + len(block.columns) for block in blocks)


class SampleCache:
    """All that a worker keeps: training and evaluation samples, whole ones and parts, under one limit.

    folder: on a disk; None where there is none to use, and memory is used instead. log: told where it is less than asked.
    """

    def __init__(
        self, folder: Path | None = None, *, limit_bytes: int = 0, log: Callable[[str], None] | None = None
    ) -> None:
        self._store = _store(folder, limit_bytes, log or _to_standard_error)
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int, int], KeptSamples] = {}

    def kept(self, job_id: str, sample_set: int, part: int) -> KeptSamples:
        """What is kept of this part of this set. The same one each time, so that it outlives a plan's epoch."""
        with self._lock:
            return self._kept.setdefault((job_id, sample_set, part), KeptSamples(self._store))

    @property
    def is_on_disk(self) -> bool:
        return isinstance(self._store, DiskStore)

    def part_of_store(self, limit_bytes: int) -> StorePart:
        """For what else is to be kept, under the same limit and one of its own."""
        return StorePart(self._store, limit_bytes=limit_bytes)


def _store(folder: Path | None, limit_bytes: int, log: Callable[[str], None]) -> ByteStore:
    if folder is None:
        return MemoryStore()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"{folder} can't be used ({error.strerror or error})"
    else:
        if not lies_in_memory(folder):
            return DiskStore(folder, limit_bytes=limit_bytes, log=log)
        why = f"{folder} lies in memory itself"
    log(f"Samples that were fetched are kept in memory, {MEMORY_BYTES >> 20} MiB at most: {why}.")
    return MemoryStore(min(limit_bytes, MEMORY_BYTES))


def lies_in_memory(folder: Path) -> bool:
    """Whether what is written there takes memory; False where this system doesn't tell."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    # 36 35 98:0 /root /mounted/here rw,noatime - ext4 /dev/root rw
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0] in _MEMORY_FILE_SYSTEMS
    return False


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
