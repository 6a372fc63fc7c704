"""Files that are on the disk, not only with the kernel, when writing them returns: a power cut takes nothing of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_CANNOT_BE_ASKED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def write_synced(path: Path, parts: Iterable[bytes]) -> None:
    """Write the parts one behind the other. Raises OSError."""
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The names of what lies in it are on the disk, too; of a file system that can't be asked, as some of shared folders, nothing
    is known. Raises OSError.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_BE_ASKED:
            raise
    finally:
        os.close(handle)
