"""A folder for what a command needs while it lives, layers of a model say; it is gone when the command is.

<temporary folder>/edgeswarm-x7k2/
    in-use     locked by the command: the kernel lets go of it however the command ends
    ...

A command that is killed can't clear away what may be gigabytes: the next one does, by who holds the locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode

PREFIX = "edgeswarm-"
LOCK_FILE = "in-use"


class WorkFolder:
    """Made at once; `cleanup` removes it. above: where; None for the system's temporary folder.

    Raises EdgeswarmError (OUTPUT_FAILED) where none can be made.
    """

    def __init__(self, above: Path | None = None) -> None:
        self._lock = -1
        try:
            above = Path(tempfile.gettempdir()) if above is None else above
            clear_away_left_ones(above)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        except OSError as error:
            raise not_made(above, error) from error
        try:
            new = self.path / f"{LOCK_FILE}.new"
            self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / LOCK_FILE)  # nobody finds it before it is locked
        except OSError as error:
            self.cleanup()
            raise not_made(above, error) from error

    def cleanup(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def not_made(above: Path | None, error: OSError) -> EdgeswarmError:
    """Of a temporary folder. above: where it was to be, as far as that is known."""
    place = "" if above is None else f" ({above})"
    return EdgeswarmError(
        ErrorCode.OUTPUT_FAILED,
        f"No temporary folder can be made: {error.strerror or error}{place}.",
        "Free space there, or set TMPDIR to a folder with more.",
    )


def clear_away_left_ones(above: Path) -> None:
    """Removes this user's folders whose commands are gone. What can't be looked at or removed stays."""
    for folder in above.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
