"""Who made the testbed that exists: the process that has it in a `with` block, or nobody, where it was made by hand to stay.

One that was killed can't remove it. Whoever wants a testbed next sees that its owner is gone, and removes what is left.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

# In memory: a machine that starts anew has no testbed either.
RECORD = Path("/dev/shm/edgeswarm-bed-owner")
_BEGAN = 19  # the kernel's 22nd field of a process, of those behind its name


def record() -> None:
    """This process has it from now on. An id comes again, its beginning doesn't."""
    RECORD.write_text(json.dumps([os.getpid(), _began(os.getpid())]))


def forget() -> None:
    """The testbed is gone, or belongs to nobody. May be repeated."""
    RECORD.unlink(missing_ok=True)


def is_gone() -> bool:
    """Whether a process had it that doesn't run any more."""
    try:
        process_id, began = json.loads(RECORD.read_text())
    except (FileNotFoundError, ValueError, TypeError):
        return False
    return bool(_began(process_id) != began)


def _began(process_id: int) -> int | None:
    """When a process began, in ticks since the machine's start, which no clock that is set moves; None where there is none."""
    try:
        return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[_BEGAN])
    except (FileNotFoundError, ProcessLookupError):
        return None
