"""Where a training pauses: after which round the workers stop, evaluate, and hold their layers to be fetched. Pure.

    epochs        |-------|-------|-------|-------|          8 rounds each
    evaluation            e               e       e          evaluate_every 2, and at the end
    checkpoint                    c               c          every 24 rounds, and at the end
                  |-------|---------------|-------|          segments: one Start each

    looks         l     l           l                        6, 12, 24, 48, 96, 192, 288, ... rounds after the beginning

Without a number of rounds from one checkpoint to the next the training's own pace decides: a checkpoint may cost at most 2 %
of the time since the last one, the first one, whose cost is a guess, 10 % of that since the beginning. Where epochs are short a
segment then has several of them, for a pause has its price too; and where they are long it ends within one, for what a failure
costs is what was trained since the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINT_TIME_FRACTION = 0.02
# Of the first one, sooner: it is what tells the cost, and until then a failure loses all.
FIRST_TIME_FRACTION = 0.1
# Of gathering, before it was measured: a wireless network has as much, a small disk takes as long to have a file safe.
FIRST_GUESS_BYTES_PER_SECOND = 5e6
FIRST_GUESS_SECONDS_A_LAYER = 0.01
FIRST_LOOK_ROUNDS = 6
MOST_ROUNDS_BETWEEN_LOOKS = 96
# Of the rounds after which a checkpoint is due: the end of an epoch is waited for where it comes within so many times these.
WAITS_FOR_THE_EPOCH = 2


@dataclass(frozen=True)
class Segment:
    """Rounds first_round <= r < end_round in one go. evaluates: the evaluation set follows them."""

    first_round: int
    end_round: int
    evaluates: bool


@dataclass(frozen=True)
class Pace:
    """What is known of the training's speed.

    round_seconds: of a round, lately; None before any was run. checkpoint_seconds: what the next checkpoint will cost.
    since_checkpoint_seconds: since the last one, or since the beginning. time_fraction: how much of that time it may take.
    """

    checkpoint_seconds: float
    round_seconds: float | None = None
    since_checkpoint_seconds: float = 0.0
    time_fraction: float = CHECKPOINT_TIME_FRACTION

    @classmethod
    def at_the_beginning(cls, *, checkpoint_bytes: int, layers: int) -> Pace:
        """Before anything was measured."""
        guess = checkpoint_bytes / FIRST_GUESS_BYTES_PER_SECOND + layers * FIRST_GUESS_SECONDS_A_LAYER
        return cls(guess, time_fraction=FIRST_TIME_FRACTION)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether one that is written now keeps to its part of the time."""
        return self.since_checkpoint_seconds * self.time_fraction >= self.checkpoint_seconds


@dataclass(frozen=True)
class Segments:
    """The rules of one job.

    rounds: of the whole job, whose epochs have rounds_per_epoch each. evaluate_every: epochs from one evaluation to the next;
    None where there is no evaluation set. checkpoint_every: rounds from one checkpoint to the next; None for the pace's.
    looks_from: the round from which on looks at the devices' speeds are counted; None for none.
    """

    rounds: int
    rounds_per_epoch: int
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    looks_from: int | None = None

    def after(self, first_round: int, pace: Pace) -> Segment:
        """The segment that begins with this round, which is one of the job's."""
        ends = [self.rounds]
        if self.evaluate_every is not None:
            ends.append(_next_multiple(self.rounds_per_epoch * self.evaluate_every, first_round))
        ends.append(
            _next_multiple(self.checkpoint_every, first_round)
            if self.checkpoint_every is not None
            else self._end_at_own_pace(first_round, pace)
        )
        if self.looks_from is not None:
            ends.append(_next_look(self.looks_from, first_round))
        end_round = min(ends)
        return Segment(first_round, end_round, self._evaluates_at(end_round))

    def evaluations_from(self, first_round: int) -> int:
        """How many are still to come where this round is the next one."""
        if self.evaluate_every is None:
            return 0
        step = self.rounds_per_epoch * self.evaluate_every
        return -(-self.rounds // step) - first_round // step

    def looks_at(self, end_round: int) -> bool:
        """Whether the devices' speeds are looked at after this segment."""
        return self.looks_from is not None and _next_look(self.looks_from, end_round - 1) == end_round < self.rounds

    def checkpoint_is_due(self, end_round: int, pace: Pace) -> bool:
        """Whether one is to be written at the end of a segment; at the end of the job in any case."""
        if end_round >= self.rounds:
            return True
        return pace.checkpoint_is_due if self.checkpoint_every is None else end_round % self.checkpoint_every == 0

    def _evaluates_at(self, end_round: int) -> bool:
        if self.evaluate_every is None:
            return False
        return end_round == self.rounds or end_round % (self.rounds_per_epoch * self.evaluate_every) == 0

    def _end_at_own_pace(self, first_round: int, pace: Pace) -> int:
        """The end of the first epoch at which a checkpoint will be due; where that is far, of the rounds after which it is."""
        wanted = 1
        if pace.round_seconds:
            missing_seconds = pace.checkpoint_seconds / pace.time_fraction - pace.since_checkpoint_seconds
            wanted = max(1, round(min(missing_seconds / pace.round_seconds, self.rounds)))
        end_of_epoch = -(-(first_round + wanted) // self.rounds_per_epoch) * self.rounds_per_epoch
        wanted = max(wanted, FIRST_LOOK_ROUNDS)
        is_far = end_of_epoch - first_round > WAITS_FOR_THE_EPOCH * wanted
        return first_round + wanted if is_far else end_of_epoch


def _next_multiple(step: int, first_round: int) -> int:
    """The first multiple of `step` that is larger than first_round."""
    return (first_round // step + 1) * step


def _next_look(looks_from: int, first_round: int) -> int:
    """The first round after first_round at which is looked."""
    passed = FIRST_LOOK_ROUNDS
    while looks_from + passed <= first_round:
        passed += min(passed, MOST_ROUNDS_BETWEEN_LOOKS)
    return looks_from + passed
