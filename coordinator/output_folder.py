"""Whether a result can be written where the user wants it: known before the training, not only after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode


def check_output_is_free(folder: Path) -> None:
    """Raises EdgeswarmError (OUTPUT_EXISTS) where something of that name exists."""
    if folder.exists() or folder.is_symlink():
        raise EdgeswarmError(
            ErrorCode.OUTPUT_EXISTS,
            f"{folder} exists already.",
            "Choose another folder with --output, or move that one away.",
        )


def check_output_can_be_made(folder: Path) -> None:
    """As `check_output_is_free`; OUTPUT_FAILED where no folder can be made there. Leaves nothing behind."""
    check_output_is_free(folder)
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        # Tried, not asked: a read-only disk, or /proc, says no to root as well.
        Path(tempfile.mkdtemp(prefix=".edgeswarm-", dir=above)).rmdir()
    except OSError as error:
        what = "is not a folder" if not above.is_dir() else f"can't be written to ({error.strerror or error})"
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The result can't be written to {folder}: {above} {what}.",
            "Choose another folder with --output.",
        ) from error
