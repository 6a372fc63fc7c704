"""What the parts of one epoch at this worker share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .mailbox import Mailbox
from .timing import Progress, RoundClock


@dataclass(frozen=True)
class EpochContext:
    """wire_dtype: how float32 travels between workers, None for as it is.

    slow_down: stretches computing, for demos and tests: 3.0 makes a third of the speed.
    """

    epoch: int
    seed: int
    switch: EpochSwitch
    mailbox: Mailbox
    egress: EgressScheduler
    clock: RoundClock
    progress: Progress
    wire_dtype: str | None = None
    slow_down: float = 1.0

    @contextlib.contextmanager
    def stretched(self) -> Iterator[None]:
        """Sleeps at the end so long that the computing inside took `slow_down` times its CPU seconds."""
        started = time.thread_time()
        yield
        if self.slow_down > 1.0:
            self.switch.sleep((self.slow_down - 1.0) * (time.thread_time() - started))
