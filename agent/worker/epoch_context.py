"""What the parts of one epoch at this worker share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .accelerator import wait_for
from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .mailbox import Mailbox
from .timing import Progress, RoundClock


@dataclass(frozen=True)
class EpochContext:
    """wire_dtype: how float32 travels between workers, None for as it is.

    slow_down: stretches computing, for demos and tests: 3.0 makes a third of the speed. accelerator: "cpu" or "cuda".
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
    accelerator: str = "cpu"

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """What is inside is done at the end, on a card, too, and took `slow_down` times its seconds, CPU seconds on a CPU."""
        now = time.thread_time if self.accelerator == "cpu" else time.perf_counter
        started = now()
        yield
        wait_for(self.accelerator)
        if self.slow_down > 1.0:
            self.switch.sleep((self.slow_down - 1.0) * (now() - started))
