"""Whether a result can be written where the user wants it: known before the training, not only after it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode

from .manifest import MANIFEST_NAME
from .options import unfinished_folder


def is_there(path: Path) -> bool:
    """Whether something of that name exists, a link to nothing too. Raises EdgeswarmError (OUTPUT_FAILED) where that can't be
    seen.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"{path} can't be looked at ({error.strerror or error}).",
            "Choose another folder with --output.",
        ) from error
    return True


def check_output_is_free(folder: Path) -> None:
    """Raises EdgeswarmError: OUTPUT_EXISTS where something of that name exists, OUTPUT_FAILED where nobody may look."""
    if is_there(folder):
        raise EdgeswarmError(
            ErrorCode.OUTPUT_EXISTS,
            f"{folder} exists already.",
            "Choose another folder with --output, or move that one away.",
        )


def check_output_can_be_made(folder: Path) -> None:
    """As `check_output_is_free`; OUTPUT_FAILED where no folder can be made there. Leaves nothing behind."""
    check_output_is_free(folder)
    above = next(parent for parent in folder.absolute().parents if is_there(parent))
    try:
        # Tried, not asked: a read-only disk, or /proc, says no to root as well.
        Path(tempfile.mkdtemp(prefix=".edgeswarm-", dir=above)).rmdir()
    except OSError as error:
        no_folder = isinstance(error, NotADirectoryError)
        what = "is not a folder" if no_folder else f"can't be written to ({error.strerror or error})"
        way = way_to_another_disk(unfinished_folder(folder))
        remedy = "Choose another folder with --output."
        if way is not None:
            remedy = f"See that it can be written to and has room, or {way}."
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The result can't be written to {folder}: {above} {what}.",
            remedy,
        ) from error


def way_to_another_disk(checkpoints: Path) -> str | None:
    """For a remedy: how a training goes on elsewhere whose `unfinished_folder` this is. None where it has no checkpoint.

    Checkpoints are looked for beside the result alone; another --output would have none.
    """
    if not os.path.isfile(checkpoints / MANIFEST_NAME):  # Path.is_file raises where nobody may look
        return None
    return f"move {checkpoints} to a disk with room, and go on with --resume --output DISK/{checkpoints.stem}"
