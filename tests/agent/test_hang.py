"""When a worker counts as hung: by the looks at it alone, without a clock."""

from __future__ import annotations

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.hang import LEAST_SECONDS, LOOK_SECONDS, TIMES_THE_REHEARSAL, HangWatch


def computing(seconds: float) -> agent_pb2.WorkerProgress:
    return agent_pb2.WorkerProgress(action="forward of micro-batch 3", computing=True, action_seconds=seconds)


def looks_until_it_hangs(watch: HangWatch, *, first: float = 0.5, most: int = 1000) -> int | None:
    """An action that goes on and on, looked at every LOOK_SECONDS; how many looks it takes."""
    for look in range(1, most):
        if watch.hangs(computing(first + look * LOOK_SECONDS), since_last_seconds=LOOK_SECONDS):
            return look
    return None


def test_the_limit_follows_the_rehearsal_and_is_never_short() -> None:
    assert HangWatch(0.0).limit_seconds == HangWatch(0.01).limit_seconds == LEAST_SECONDS
    assert HangWatch(3.0).limit_seconds == TIMES_THE_REHEARSAL * 3.0


def test_an_action_without_an_end_hangs_once_the_limit_is_over() -> None:
    watch = HangWatch(0.0)
    assert looks_until_it_hangs(watch) == int(LEAST_SECONDS / LOOK_SECONDS) + 1


def test_each_action_begins_anew() -> None:
    watch = HangWatch(0.0)
    assert looks_until_it_hangs(watch, most=9) is None
    assert not watch.hangs(computing(0.1), since_last_seconds=LOOK_SECONDS)
    assert looks_until_it_hangs(watch, most=9) is None


def test_who_waits_does_not_hang() -> None:
    watch = HangWatch(0.0)
    for look in range(100):
        progress = agent_pb2.WorkerProgress(action="waiting for samples", action_seconds=look * LOOK_SECONDS)
        assert not watch.hangs(progress, since_last_seconds=LOOK_SECONDS)


def test_a_machine_that_stood_still_says_nothing() -> None:
    """For an hour: then the worker's clock says an hour, too, and two seconds of it count."""
    watch = HangWatch(0.0)
    assert not watch.hangs(computing(0.5), since_last_seconds=LOOK_SECONDS)
    assert not watch.hangs(computing(3600.0), since_last_seconds=3600.0)
    assert not watch.hangs(computing(0.1), since_last_seconds=LOOK_SECONDS)
