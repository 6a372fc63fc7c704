"""How Python, PyTorch and the C library say that there is no memory left."""

from __future__ import annotations

_PHRASES = ("can't allocate memory", "cannot allocate memory", "out of memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of computing is an allocation that failed, on the processor or on a GPU."""
    return isinstance(error, MemoryError) or _says_so(str(error))


def tells_out_of_memory(log: str) -> bool:
    """Whether what a process wrote before it ended tells of one."""
    return "MemoryError" in log or _says_so(log)


def _says_so(text: str) -> bool:
    lower = text.lower()
    return any(phrase in lower for phrase in _PHRASES)
