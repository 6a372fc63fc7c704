"""Who made the testbed that exists: the process that has it in a `with` block, or nobody, where it was made by hand to stay.

One that was killed can't remove it. Whoever wants a testbed next sees that its owner is gone, and removes what is left.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil

# In memory: a machine that starts anew has no testbed either.
RECORD = Path("/dev/shm/edgeswarm-bed-owner")


def record() -> None:
    """This process has it from now on. An id comes again, its start doesn't."""
    RECORD.write_text(json.dumps([os.getpid(), psutil.Process().create_time()]))


def forget() -> None:
    """The testbed is gone, or belongs to nobody. May be repeated."""
    RECORD.unlink(missing_ok=True)


def is_gone() -> bool:
    """Whether a process had it that doesn't run any more."""
    try:
        process_id, began = json.loads(RECORD.read_text())
        return bool(psutil.Process(process_id).create_time() != began)
    except (FileNotFoundError, ValueError, TypeError):
        return False
    except psutil.NoSuchProcess:
        return True
