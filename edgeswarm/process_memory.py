"""How much memory a process holds, and held at most: a worker's, and the command's where it says what workers will hold. And how
often it waited for memory that lay on a disk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")
_MAJOR_FAULTS = 9  # field 12 of /proc/PID/stat, behind the process's name


def _status_bytes(process_id: int | None = None) -> dict[str, int]:
    """The lines of a process's status that are of memory, in bytes, by default of this one; none where there is no such file."""
    try:
        lines = Path(f"/proc/{process_id or 'self'}/status").read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines if line.endswith(" kB"))
    return {name.removesuffix(":"): int(kibibytes) * 1024 for name, kibibytes, _ in words}


def _own(status: Mapping[str, int]) -> int:
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def anonymous_bytes(process_id: int | None = None) -> int:
    """Memory that is the process's own, by default this one's: without files and libraries, which the kernel can drop and others
    share. 0 of one that has ended.
    """
    return _own(_status_bytes(process_id))


def peak_anonymous_bytes() -> int:
    """The most of it since `reset_peak`: the peak of all resident memory, less the file pages resident now."""
    status = _status_bytes()  # one look: it costs a small device a tenth of a millisecond, once a round
    return max(status.get("VmHWM", 0) - status.get("RssFile", 0), _own(status))


def reset_peak() -> None:
    """Starts the peak anew. Where the kernel doesn't allow it, the peak stays that of the whole life."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def major_page_faults(process_id: int) -> int:
    """How often the process has waited for its memory to come from a disk, swap or files; 0 of one that has ended."""
    try:
        # The name, in brackets, may have anything in it.
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return int(fields[_MAJOR_FAULTS])
    except (OSError, IndexError, ValueError):
        return 0


def give_back_free_memory() -> None:
    """Returns what the allocator keeps but doesn't use to the system (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
