"""When a worker counts as hung: by the looks at it alone, without a clock."""

from __future__ import annotations

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.hang import (
    LEAST_SECONDS,
    LEAST_SECONDS_OF_THE_FIRST,
    LOOK_SECONDS,
    SILENT_SECONDS,
    TIMES_AS_LONG,
    HangWatch,
)


def computing(number: int, *, longest: float = 0.1) -> agent_pb2.WorkerProgress:
    return agent_pb2.WorkerProgress(
        action="forward of micro-batch 3", computing=True, action_number=number, longest_seconds=longest
    )


def looks_until_it_hangs(watch: HangWatch, progress: agent_pb2.WorkerProgress, *, most: int = 10_000) -> int | None:
    """An action that goes on and on, looked at every LOOK_SECONDS; behind how many looks it counts as hung."""
    for look in range(most):
        if watch.hangs(progress, since_last_seconds=LOOK_SECONDS):
            return look
    return None


def test_an_action_without_an_end_hangs_once_the_limit_is_over() -> None:
    assert looks_until_it_hangs(HangWatch(0.0), computing(7)) == LEAST_SECONDS / LOOK_SECONDS + 1
    assert looks_until_it_hangs(HangWatch(0.0), computing(7, longest=3.0)) == 3.0 * TIMES_AS_LONG / LOOK_SECONDS + 1


def test_the_first_of_a_kind_may_take_longer() -> None:
    first = computing(7, longest=0.0)
    assert looks_until_it_hangs(HangWatch(0.0), first) == LEAST_SECONDS_OF_THE_FIRST / LOOK_SECONDS + 1
    assert looks_until_it_hangs(HangWatch(9.0), first) == 9.0 * TIMES_AS_LONG / LOOK_SECONDS + 1


def test_short_actions_never_hang_however_they_fall_on_the_looks() -> None:
    """One just like the other, each of which seems to be a little older than the last one."""
    watch = HangWatch(0.0)
    for number in range(1000):
        progress = computing(number)
        progress.action_seconds = number / 1000
        assert not watch.hangs(progress, since_last_seconds=LOOK_SECONDS)


def test_a_worker_whose_memory_comes_from_a_disk_is_slow() -> None:
    watch = HangWatch(0.0)
    swapped = [watch.hangs(computing(7), since_last_seconds=LOOK_SECONDS, page_faults=200) for _ in range(100)]
    assert not any(swapped)
    assert looks_until_it_hangs(watch, computing(7)) == LEAST_SECONDS / LOOK_SECONDS


def test_who_waits_does_not_hang() -> None:
    progress = agent_pb2.WorkerProgress(action="waiting for samples", action_number=7, action_seconds=1e6)
    assert looks_until_it_hangs(HangWatch(0.0), progress, most=1000) is None


def test_who_waits_and_says_nothing_any_more_does() -> None:
    """Stopped while it waited, say: its last report stands."""
    watch = HangWatch(0.0)
    progress = agent_pb2.WorkerProgress(action="waiting for activations", action_number=7)

    def looks(most: int, *, is_silent: bool) -> list[bool]:
        return [watch.hangs(progress, since_last_seconds=LOOK_SECONDS, is_silent=is_silent) for _ in range(most)]

    at_the_limit = int(SILENT_SECONDS / LOOK_SECONDS)
    assert not any(looks(at_the_limit, is_silent=True) + looks(1, is_silent=False))
    assert looks(at_the_limit + 1, is_silent=True) == [False] * at_the_limit + [True]
    assert watch.is_silent
    assert not watch.hangs(progress, since_last_seconds=3600.0)


def test_a_machine_that_stood_still_says_nothing() -> None:
    """For an hour: then the worker's clock says an hour, too, and two seconds of it count."""
    watch = HangWatch(0.0)
    assert not watch.hangs(computing(7), since_last_seconds=LOOK_SECONDS)
    assert not watch.hangs(computing(7), since_last_seconds=3600.0)
    assert not watch.hangs(computing(8), since_last_seconds=LOOK_SECONDS)
