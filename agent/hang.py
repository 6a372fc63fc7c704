"""A worker that hangs: it computes at one action much longer than all of its rehearsal took. Pure; who looks is device.py.

    rehearsal 0.4 s | forward 0.1 s | backward 0.2 s | forward ........................ 10 s: it hangs

A loss that waits for ever, a driver that does: the process lives, its heart beats, and everybody else waits for it. Slow is not
hung: whoever waits for others, for samples or for sums isn't looked at, and the limit follows the device's own pace.
"""

from __future__ import annotations

from edgeswarm.wire.v1 import agent_pb2

LOOK_SECONDS = 1.0
LEAST_SECONDS = 10.0
# An action may take so many times what the rehearsal took for all of its own: something else can slow a device down for a while.
TIMES_THE_REHEARSAL = 20.0


class HangWatch:
    """Told now and then what the worker says of itself.

    rehearsal_seconds: what its rehearsal took, in which it computed each kind of action once at least.
    """

    def __init__(self, rehearsal_seconds: float) -> None:
        self.limit_seconds = max(LEAST_SECONDS, TIMES_THE_REHEARSAL * rehearsal_seconds)
        self._action_seconds = 0.0
        self._seen_seconds = 0.0

    def hangs(self, progress: agent_pb2.WorkerProgress, *, since_last_seconds: float) -> bool:
        """Whether the action under way has taken longer than any may.

        Between two looks not more than two of the usual intervals count: a machine that stood still altogether, and the worker
        with it, says nothing.
        """
        is_same = progress.computing and progress.action_seconds >= self._action_seconds
        self._action_seconds = progress.action_seconds
        self._seen_seconds = self._seen_seconds + min(since_last_seconds, 2 * LOOK_SECONDS) if is_same else 0.0
        return self._seen_seconds > self.limit_seconds
