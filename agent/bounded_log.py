"""A process's output in a file that can't fill the disk, and its last lines in memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import BinaryIO

from edgeswarm.errors import EdgeswarmError, ErrorCode

LARGEST_FILE_BYTES = 1024 * 1024
_TAIL_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


class BoundedLog:
    """Copies a stream into `path` from a thread of its own. At 1 MiB the file becomes `<name>.1` and a new one begins.

    A disk that can't be written costs the file, never the copying: the process behind the stream must not block.
    """

    def __init__(self, path: Path, *, largest_bytes: int = LARGEST_FILE_BYTES) -> None:
        self.path = path
        self._largest_bytes = largest_bytes
        self._tail = b""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Opened here, so that a folder that can't be written is an error where somebody hears it.
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a job may print what is nobody else's business
            self._file: BinaryIO | None = path.open("ab", buffering=0)
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The worker's log {path} can't be written: {error.strerror or error}.",
                "Give the agent a folder that it may write, with EDGESWARM_HOME.",
            ) from error

    def follow(self, stream: BinaryIO) -> None:
        """Copies the stream (unbuffered) until its end, in the background."""
        self._thread = threading.Thread(target=self._copy, args=(stream,), name="worker-log", daemon=True)
        self._thread.start()

    def finish(self, timeout_seconds: float) -> None:
        """Waits for the stream's end, but not for ever: a grandchild may hold it open."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    @property
    def tail(self) -> str:
        """The last 16 KiB."""
        with self._lock:
            return self._tail.decode(errors="replace")

    def _copy(self, stream: BinaryIO) -> None:
        with stream:
            while part := stream.read(_READ_BYTES):
                with self._lock:
                    self._tail = (self._tail + part)[-_TAIL_BYTES:]
                self._store(part)
        if self._file is not None:
            self._file.close()

    def _store(self, part: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._file.tell() + len(part) > self._largest_bytes:
                self._file.close()
                os.replace(self.path, self.path.with_name(self.path.name + ".1"))
                self._file = self.path.open("ab", buffering=0)
            self._file.write(part)
        except OSError:
            # A full disk, a folder taken away: the tail in memory goes on.
            self._file.close()
            self._file = None
