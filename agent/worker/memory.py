"""How much memory this process holds, and held at most."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
# Smaller parameters' gradients leave no gaps that count.
LEAST_LARGE_BYTES = 32 * 1024 * 1024
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_THRESHOLD_SET = "MALLOC_MMAP_THRESHOLD_"


def _status_bytes() -> dict[str, int]:
    """The lines of /proc/self/status that are of memory, in bytes; none where this system has no such file."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines if line.endswith(" kB"))
    return {name.removesuffix(":"): int(kibibytes) * 1024 for name, kibibytes, _ in words}


def _own(status: Mapping[str, int]) -> int:
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def anonymous_bytes() -> int:
    """Memory that is this process's own: without files and libraries, which the kernel can drop and others share."""
    return _own(_status_bytes())


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


def give_back_free_memory() -> None:
    """Returns what the allocator keeps but doesn't use to the system (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def map_gradients_of(parameters: Iterable[torch.Tensor]) -> None:
    """From now on blocks as large as the largest of these get pages of their own, where that is large (glibc only).

    The gradient of a large table comes and goes in every backward. In the heap activations settle where it was, and the next one
    takes new memory; so the heap grows by several times its size. Pages of its own go back to the system each time. Smaller
    blocks stay in the heap, as the process was started: there they are faster.
    """
    set_at_start = os.environ.get(_THRESHOLD_SET)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_at_start is None or mallopt is None:
        return
    sizes = (p.numel() * p.element_size() for p in parameters if p.requires_grad)
    largest = max(sizes, default=0)
    mallopt(_M_MMAP_THRESHOLD, largest if largest >= LEAST_LARGE_BYTES else int(set_at_start))
