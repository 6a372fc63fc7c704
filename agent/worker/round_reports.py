"""Reports of rounds on their way out: where rounds are short, several go in one message.

A message wakes the daemon, and through it the coordinator: milliseconds of a small device, which is much of a round of a
small model.

    rounds     |0|1|2|3|4|5|6|7|8|
    messages   0         1-4     5-8        BETWEEN_MESSAGES_SECONDS between two; the rest goes before the next thing that is said
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from edgeswarm.wire.v1 import agent_pb2

BETWEEN_MESSAGES_SECONDS = 0.2


class RoundReports:
    """Holds reports for BETWEEN_MESSAGES_SECONDS after a message; any thread may call. `send` gets one or more, in order."""

    def __init__(
        self,
        *,
        send: Callable[[agent_pb2.RoundReports], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        # Held while sending, too: nothing that is said after `send_held` comes before what it sends.
        self._lock = threading.Lock()
        self._held: list[agent_pb2.RoundReport] = []
        self._sent_at: float | None = None

    def add(self, report: agent_pb2.RoundReport) -> None:
        """Sends it, with those that are held, or holds it."""
        with self._lock:
            self._held.append(report)
            if self._sent_at is None or self._clock() - self._sent_at >= BETWEEN_MESSAGES_SECONDS:
                self._send_all()

    def send_held(self) -> None:
        """Sends what is held; before anything is said that comes after these rounds."""
        with self._lock:
            if self._held:
                self._send_all()

    def _send_all(self) -> None:
        held, self._held = self._held, []
        self._sent_at = self._clock()
        self._send(agent_pb2.RoundReports(reports=held))
