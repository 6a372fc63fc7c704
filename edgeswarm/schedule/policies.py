"""Schedules by the name that a plan gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .one_f_one_b import OneForwardOneBackward
from .policy import SchedulePolicy

SCHEDULES: dict[str, Callable[[Sequence[int], int], SchedulePolicy]] = {
    "1f1b": lambda micro_batches, in_flight: OneForwardOneBackward(micro_batches, in_flight=in_flight),
}


def make_policy(schedule: str, micro_batches: Sequence[int], *, in_flight: int) -> SchedulePolicy:
    """The policy that a plan's `schedule` names. Raises ValueError for a name that isn't known."""
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule is called {schedule!r}; there are: {', '.join(sorted(SCHEDULES))}")
    return SCHEDULES[schedule](micro_batches, in_flight)
