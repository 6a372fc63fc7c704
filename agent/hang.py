"""A worker that hangs: it computes at one action much longer than any of that kind has taken, or says nothing of itself any more.
Pure; who looks is device.py.

    forward 0.1 s | backward 0.2 s | forward 0.1 s | forward ........................ 10 s: it hangs

A loss that waits for ever, a driver that does: the process lives, its heart beats, and everybody else waits for it. Slow is not
hung: whoever waits for others or for sums isn't looked at, and the limit follows what the worker itself has taken so far. Who
waits for samples, or for a transform to let go of the random numbers that a layer draws from, is at what makes them ready: a
transform, or a data set that this device opened, which may take five minutes for an item (timing.py). The first action of a kind
may do things once: a loss imports a library, a card compiles its kernels.

A worker reports every second, also while it waits. One that was stopped, or whose interpreter is held for ever by somebody's code
in C, doesn't.
"""

from __future__ import annotations

from edgeswarm.wire.v1 import agent_pb2

LOOK_SECONDS = 1.0
LEAST_SECONDS = 10.0
LEAST_SECONDS_OF_THE_FIRST = 60.0
# Something else can slow a device down for a while.
TIMES_AS_LONG = 20.0
# Without a report: code in C that lets nobody else run may make an item ready for so long (above).
SILENT_SECONDS = 300.0
# From one look to the next. A card of the slowest kind reads some hundred pages a second one by one.
FAULTS_OF_A_SWAPPED_WORKER = 50


class HangWatch:
    """Told now and then what the worker says of itself.

    rehearsal_seconds: what its rehearsal took, by which the first action of a kind is judged.
    """

    def __init__(self, rehearsal_seconds: float) -> None:
        self._first_seconds = max(LEAST_SECONDS_OF_THE_FIRST, TIMES_AS_LONG * rehearsal_seconds)
        self._action_number = 0
        self._seen_seconds = 0.0
        self._silent_seconds = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard for too long."""
        return self._silent_seconds > SILENT_SECONDS

    def limit_seconds(self, progress: agent_pb2.WorkerProgress) -> float:
        """For how long the action under way may go on."""
        if progress.longest_seconds == 0:
            return self._first_seconds
        return max(LEAST_SECONDS, TIMES_AS_LONG * progress.longest_seconds)

    def hangs(
        self,
        progress: agent_pb2.WorkerProgress,
        *,
        since_last_seconds: float,
        is_silent: bool = False,
        page_faults: int = 0,
    ) -> bool:
        """Whether the action under way has taken longer than it may, or nothing was heard for too long.

        is_silent: it hasn't reported since the last look. page_faults: since then, of memory that came from a disk: a worker that
        waited for long and was swapped out takes a while to come back, which is slow, not hung.
        Between two looks not more than two of the usual intervals count: a machine that stood still altogether, and the worker
        with it, says nothing.
        """
        seconds = min(since_last_seconds, 2 * LOOK_SECONDS)
        self._silent_seconds = self._silent_seconds + seconds if is_silent else 0.0
        is_same = progress.computing and progress.action_number == self._action_number
        self._action_number = progress.action_number
        comes_back = page_faults >= FAULTS_OF_A_SWAPPED_WORKER
        self._seen_seconds = self._seen_seconds + (0.0 if comes_back else seconds) if is_same else 0.0
        return self._seen_seconds > self.limit_seconds(progress) or self.is_silent
