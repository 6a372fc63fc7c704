"""A machine that slept, by what its clocks say."""

from __future__ import annotations

from edgeswarm.errors import ErrorCode
from edgeswarm_coordinator.job_state import Failed, JobState, OwnFailure, Phase, Watched, advance
from edgeswarm_coordinator.suspended import SleepWatch, seconds_asleep_since_boot, slept


def test_what_was_slept_is_told_once() -> None:
    asleep = iter([100.0, 100.0, 3700.0, 3700.01])
    watch = SleepWatch(lambda: next(asleep))
    assert watch.slept_seconds() == 0.0
    assert watch.slept_seconds() == 3600.0
    assert watch.slept_seconds() < 0.1


def test_the_clocks_of_this_machine() -> None:
    assert seconds_asleep_since_boot() >= -1e-3
    assert abs(SleepWatch().slept_seconds()) < 1.0


def test_it_explains_what_all_devices_say() -> None:
    """Their streams ended while nobody listened."""
    state, _ = advance(JobState(), Watched("nano-1"), now=1.0)
    told = slept(3480.0)
    assert "slept for 58 min" in told.message
    assert "slept for 30 s" in slept(30.0).message
    state, _ = advance(state, OwnFailure(told), now=2.0)
    assert (state.phase, state.error) == (Phase.FAILED, told)
    state, _ = advance(state, Failed("nano-1", slept(1.0)), now=2.0)
    assert state.error is told
    assert told.code is ErrorCode.DEVICE_LOST
