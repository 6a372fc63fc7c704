"""How much memory this process holds, and held at most."""

from __future__ import annotations

import ctypes
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _status_bytes(name: str) -> int:
    """A line of /proc/self/status in bytes; 0 where this system has none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def anonymous_bytes() -> int:
    """Memory that is this process's own: without files and libraries, which the kernel can drop and others share."""
    return _status_bytes("RssAnon") + _status_bytes("RssShmem")


def peak_anonymous_bytes() -> int:
    """The most of it since `reset_peak`: the peak of all resident memory, less the file pages resident now."""
    return max(_status_bytes("VmHWM") - _status_bytes("RssFile"), anonymous_bytes())


def reset_peak() -> None:
    """Starts the peak anew. Where the kernel doesn't allow it, the peak stays that of the whole life."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def give_back_free_memory() -> None:
    """Returns what the allocator keeps but doesn't use to the system (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
