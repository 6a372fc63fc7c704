"""How an epoch ends before its rounds do."""

from __future__ import annotations

import traceback
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode


class HaltedError(Exception):
    """The epoch was halted from outside; nothing went wrong here."""


class LinkBrokenError(EdgeswarmError):
    """A stream to or from another worker ended while it was needed. `peer` is the node id at its other end."""

    def __init__(self, peer: str, detail: str) -> None:
        super().__init__(
            ErrorCode.LINK_BROKEN,
            f"the link to {peer} broke ({detail}).",
            f"Look whether {peer} is switched on and reachable, then start the job again.",
        )
        self.peer = peer


def line_of(error: BaseException) -> str:
    """` (job.py, line 12)`: where it was raised; empty where nothing tells."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
