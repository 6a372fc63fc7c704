"""Files that hold secrets or that two processes share: private folders, atomic writes, JSON under a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import EdgeswarmError, ErrorCode


def make_private_folder(path: Path) -> Path:
    """Make `path` (and its parents) readable by its owner alone and return it.

    Raises EdgeswarmError (CONFIG) where the folder can't be made, or where another user owns it: a shared place such as
    /dev/shm lets anybody create our folder before we do.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        owner = found.st_uid
        # An older umask or a copy may have left it open. Else nothing is written: the disk may be one that can only be read.
        if owner == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.CONFIG,
            f"The folder {path} can't be used: {error.strerror}.",
            "Make it writable for this user, or set EDGESWARM_HOME to another folder.",
        ) from error
    if owner != os.geteuid():
        raise EdgeswarmError(
            ErrorCode.CONFIG,
            f"The folder {path} belongs to another user (uid {owner}).",
            "Remove it, run as that user, or set EDGESWARM_HOME to another folder.",
        )
    return path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` to `path` whole or not at all; the file never exists with wider permissions than `mode`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked_json(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON object in `path`, to be read and changed while no other process may.

    What the block leaves in the dictionary is written back (atomically, 0600) when the block ends without an exception
    and something changed. The lock is a file beside it, since the file itself is replaced on each write.
    A file that isn't there is an empty object; one that isn't a JSON object raises EdgeswarmError (CONFIG).
    """
    with open(path.with_name(path.name + ".lock"), "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _read_object(path)
        document = json.loads(json.dumps(before))
        yield document
        if document != before:
            write_atomically(path, json.dumps(document, indent=1, sort_keys=True).encode())


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(document, dict):
        raise _damaged(path)
    return document


def _damaged(path: Path) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.CONFIG, f"The file {path} is damaged: it isn't a JSON object.", "Remove the file.")
