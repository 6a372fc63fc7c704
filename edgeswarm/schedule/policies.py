"""Schedules by the name that a plan gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .one_f_one_b import OneForwardOneBackward
from .policy import SchedulePolicy
from .zero_bubble import ZeroBubble

ONE_FORWARD_ONE_BACKWARD = "1f1b"
ZERO_BUBBLE = "zero-bubble"

SCHEDULES: dict[str, Callable[[Sequence[int], int], SchedulePolicy]] = {
    ONE_FORWARD_ONE_BACKWARD: lambda micro_batches, in_flight: OneForwardOneBackward(
        micro_batches, in_flight=in_flight
    ),
    ZERO_BUBBLE: lambda micro_batches, in_flight: ZeroBubble(micro_batches, in_flight=in_flight),
}


def has_weights_apart(schedule: str) -> bool:
    """Whether the schedule computes gradients of weights apart from the rest of a backward."""
    return schedule == ZERO_BUBBLE


def make_policy(schedule: str, micro_batches: Sequence[int], *, in_flight: int) -> SchedulePolicy:
    """The policy that a plan's `schedule` names. Raises ValueError for a name that isn't known."""
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule is called {schedule!r}; there are: {', '.join(sorted(SCHEDULES))}")
    return SCHEDULES[schedule](micro_batches, in_flight)
