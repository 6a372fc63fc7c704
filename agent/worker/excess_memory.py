"""What a worker holds beyond its plan goes back to the system, now and then.

A heap in which blocks of many sizes come and go has gaps, and over many rounds more of them: after hundreds of rounds a worker
would hold a good part more than its plan says, and nobody had reckoned with that. What is free between two rounds can be given
back; the next round takes it anew, page by page, which costs time, and those who wait for this worker the same. So that happens
only clearly beyond the plan, and seldom:

    held   plan ----/----|--/-----/--|------        | given back
                 __/     |_/   __/   |_/
           rounds -->      <--------->  its cost is at most a hundredth of the processor time in between
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeswarm.process_memory import anonymous_bytes, give_back_free_memory

# To take a page again: the kernel clears it, and a virtual machine's host may have to find it first (4 ms for 2 MiB were seen).
SECONDS_PER_BYTE = 2e-9
MOST_COST = 0.01
# Of what the plan says: as much as it may be wrong. Workers that held 3 to 4 % more, and gave that back, made every fourth
# round of a training a quarter longer.
TOLERATED = 1.1
LEAST_CPU_SECONDS = 1.0


class ExcessMemory:
    """expected_bytes: what the plan says that this worker holds at its peak; None: nothing is given back. A little more than
    that (TOLERATED) is left alone.

    cpu_seconds: of this process so far.
    """

    def __init__(self, expected_bytes: int | None, *, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._most_bytes = None if expected_bytes is None else TOLERATED * expected_bytes
        self._cpu_seconds = cpu_seconds
        self._not_before = 0.0

    def after_round(self, peak_bytes: int) -> None:
        """Looks what there is to do while no micro-batch is in flight. peak_bytes: of this worker so far."""
        most = self._most_bytes
        if most is None or peak_bytes <= most or self._cpu_seconds() < self._not_before:
            return
        held = anonymous_bytes()
        if held <= most:
            return
        give_back_free_memory()
        returned = max(0, held - anonymous_bytes())
        self._not_before = self._cpu_seconds() + max(LEAST_CPU_SECONDS, returned * SECONDS_PER_BYTE / MOST_COST)
