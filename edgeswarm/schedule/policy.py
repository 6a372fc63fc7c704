"""What a schedule policy is: a small pure object that names a stage's next action."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class ActionKind(enum.Enum):
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Action:
    """One thing that a stage computes: a forward or a backward of one micro-batch (its index in the round).

    Where a schedule has gradients of weights apart, the backward is what the stage before waits for, and WEIGHTS is the rest,
    which can run at any time after it. Otherwise the backward is all of it.
    """

    kind: ActionKind
    micro_batch: int


def checked_round(micro_batches: Sequence[int], *, in_flight: int) -> tuple[int, ...]:
    """The micro-batches of a replica's round. Raises ValueError where they aren't in order, and for an in_flight below 1."""
    if in_flight < 1:
        raise ValueError("in_flight is at least 1")
    if list(micro_batches) != sorted(set(micro_batches)):
        raise ValueError("micro-batches are named once each, in ascending order")
    return tuple(micro_batches)


class SchedulePolicy(Protocol):
    """The schedule of one stage's replica over one round.

    The owner asks `next_action` whenever it is free, runs what it names, and tells `finished`. None means: nothing that is
    ready may run now, wait. `is_done` says that every action of the round has run. Gradients of weights are always ready.
    """

    @property
    def is_done(self) -> bool: ...

    def next_action(self, is_ready: Callable[[Action], bool]) -> Action | None:
        """The action to run now; `is_ready` says whether what an action needs has arrived."""

    def awaited(self) -> tuple[Action, ...]:
        """The actions that the policy would run as soon as they are ready, the preferred one first."""

    def finished(self, action: Action) -> None: ...
