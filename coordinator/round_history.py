"""The rounds that a training has behind it, in as much memory after a week as after an hour. Pure.

rounds                            kept                              for
all of them                       sums alone                        the totals of metrics.json
the last ones                     whole                             shares that follow the devices' speed
those since the last checkpoint   whole, until they are written     rounds.jsonl
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .events import RoundDone

# Far more than a look at the devices' speed wants, since it leaves out some of them (share_moves.py).
MOST_RECENT = 256


@dataclass
class RoundSums:
    """Of some rounds together. seconds: of the rounds alone, without evaluations and checkpoints between them.

    fetched_sample_bytes: of all devices.
    """

    samples: int = 0
    seconds: float = 0.0
    fetched_sample_bytes: int = 0

    def add(self, done: RoundDone) -> None:
        self.samples += done.samples
        self.seconds += done.seconds
        self.fetched_sample_bytes += sum(parts.fetched_sample_bytes for parts in done.parts.values())


class RoundHistory:
    """rounds: how many. last_loss: of the last one; NaN before there is any. without_a_loss: of how many it was no number.

    first_epoch, later_epochs: of the data. unwritten: those that no checkpoint has.
    """

    def __init__(self, written: Iterable[RoundDone] = ()) -> None:
        """written: rounds that a checkpoint has."""
        self.rounds = 0
        self.last_loss = math.nan
        self.without_a_loss = 0
        self.first_epoch, self.later_epochs = RoundSums(), RoundSums()
        self.unwritten: list[RoundDone] = []
        self._recent: deque[RoundDone] = deque(maxlen=MOST_RECENT)
        for done in written:
            self._count(done)

    def add(self, done: RoundDone) -> None:
        """One more, right behind the last."""
        self._count(done)
        self.unwritten.append(done)

    def all_written(self) -> None:
        """A checkpoint has them now."""
        self.unwritten.clear()

    @property
    def recent(self) -> Sequence[RoundDone]:
        """The last ones, MOST_RECENT at most."""
        return tuple(self._recent)

    @property
    def samples(self) -> int:
        return self.first_epoch.samples + self.later_epochs.samples

    def _count(self, done: RoundDone) -> None:
        self.rounds += 1
        self.last_loss = done.loss
        self.without_a_loss += not math.isfinite(done.loss)
        (self.first_epoch if done.epoch == 0 else self.later_epochs).add(done)
        self._recent.append(done)
