"""One agent for one folder: a second one would be the same device twice."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode

_FILE_NAME = "running"


class OnlyOne:
    """Holds a folder for this process. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises EdgeswarmError: AGENT_RUNNING where another agent has the folder, OUTPUT_FAILED where it can't be written."""
        try:
            self._take(folder)
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The agent's folder {folder} can't be written: {error.strerror or error}.",
                "Free space there, or let the agent's user write to that folder.",
            ) from error

    def _take(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _FILE_NAME).open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise EdgeswarmError(
                ErrorCode.AGENT_RUNNING,
                f"An agent runs already with the folder {folder} (process {holder}).",
                "End it, or give this one a folder of its own with --home and let it join from there.",
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def process_of_agent(folder: Path) -> str | None:
    """The number of the process that has the folder, as its agent wrote it down; None where there is none."""
    try:
        with (folder / _FILE_NAME).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "unknown"
    except OSError:
        pass
    return None
