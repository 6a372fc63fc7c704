"""Who holds a device: the pure state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.reservation import DEFAULT_LEASE_SECONDS, FIRST_WATCH_SECONDS, JobCall, Reservation
from edgeswarm_coordinator.reserving import LEASE_SECONDS, RESERVE_SECONDS

IDLE = Reservation("nano-1")


def reserve(state: Reservation, job: str, *, term: int = 1, lease: float = 3.0, now: float = 0.0) -> Reservation:
    return state.reserve(JobCall(job, term), who="ada on desk", lease_seconds=lease, clock_seconds=1.7e9, now=now)


def refused(code: ErrorCode, call: object) -> EdgeswarmError:
    assert callable(call)
    with pytest.raises(EdgeswarmError) as caught:
        call()
    assert caught.value.code is code
    assert caught.value.remedy
    return caught.value


def test_another_job_is_told_who_holds_the_device_and_since_when() -> None:
    held = reserve(IDLE, "digits-7")
    error = refused(ErrorCode.DEVICE_BUSY, lambda: reserve(held, "other"))
    for part in ("nano-1", "digits-7", "ada on desk", "2023-11-14T22:13:20+00:00"):
        assert part in error.message
    refused(ErrorCode.DEVICE_BUSY, lambda: held.admit(JobCall("other", 9)))


def test_the_same_job_may_reserve_again_and_keeps_since_when_and_its_epoch() -> None:
    held = reserve(IDLE, "a").begin_epoch(JobCall("a", 1, 4))
    again = held.reserve(JobCall("a", 2), who="bo", lease_seconds=0, clock_seconds=9e9, now=5.0)
    assert again.holding is not None
    assert (again.holding.term, again.holding.epoch, again.holding.who) == (2, 4, "bo")
    assert again.holding.since_seconds == 1.7e9
    assert again.holding.lease_seconds == DEFAULT_LEASE_SECONDS


def test_calls_to_an_idle_device_are_stale() -> None:
    refused(ErrorCode.STALE_CALL, lambda: IDLE.admit(JobCall("a", 1)))


def test_a_lower_term_is_refused_even_after_the_job_was_released() -> None:
    held = reserve(IDLE, "a", term=5)
    refused(ErrorCode.STALE_CALL, lambda: held.admit(JobCall("a", 4)))
    refused(ErrorCode.STALE_CALL, lambda: reserve(held.released(), "a", term=4))
    assert reserve(held.released(), "a", term=5).holding is not None


def test_a_higher_term_takes_over() -> None:
    taken = reserve(IDLE, "a", term=1).admit(JobCall("a", 3))
    refused(ErrorCode.STALE_CALL, lambda: taken.admit(JobCall("a", 2)))


def test_epochs_only_grow_and_start_must_mean_the_one_in_force() -> None:
    held = reserve(IDLE, "a").begin_epoch(JobCall("a", 1, 2))
    assert held.admit_in_epoch(JobCall("a", 1, 2)).holding == held.holding
    refused(ErrorCode.STALE_CALL, lambda: held.admit_in_epoch(JobCall("a", 1, 1)))
    refused(ErrorCode.STALE_CALL, lambda: held.admit_in_epoch(JobCall("a", 1, 3)))
    refused(ErrorCode.STALE_CALL, lambda: held.begin_epoch(JobCall("a", 1, 1)))
    assert held.begin_epoch(JobCall("a", 1, 3)).holding is not None


def test_a_halt_may_come_early_but_never_late() -> None:
    held = reserve(IDLE, "a").begin_epoch(JobCall("a", 1, 2))
    assert held.admit_halt(JobCall("a", 1, 2)).holding == held.holding
    assert held.admit_halt(JobCall("a", 1, 3)).holding == held.holding
    refused(ErrorCode.STALE_CALL, lambda: held.admit_halt(JobCall("a", 1, 1)))


def test_the_lease_runs_only_while_no_watch_is_open() -> None:
    state = reserve(IDLE, "a", lease=3.0, now=0.0)
    assert state.holding is not None
    assert state.holding.lease_left_seconds(1.0) == FIRST_WATCH_SECONDS - 1.0
    watched = state.watch_opened(JobCall("a", 1))
    assert watched.holding is not None
    assert watched.holding.lease_left_seconds(1e9) is None
    broken = watched.watch_broken("a", 1, now=10.0)
    assert broken.holding is not None
    assert not broken.holding.expired(12.9)
    assert broken.holding.expired(13.0)


def test_a_device_waits_for_its_first_watch_longer_than_the_coordinator_for_the_slowest_reserve() -> None:
    state = reserve(IDLE, "a", lease=LEASE_SECONDS, now=0.0)
    assert state.holding is not None
    assert not state.holding.expired(3 * RESERVE_SECONDS)
    assert state.watch_opened(JobCall("a", 1)).holding is not None


def test_an_older_watch_that_breaks_later_changes_nothing() -> None:
    state = reserve(IDLE, "a").watch_opened(JobCall("a", 1)).watch_opened(JobCall("a", 2))
    assert state.watch_broken("a", 1, now=1.0) is state
    assert state.watch_broken("other", 2, now=1.0) is state
    assert state.released().watch_broken("a", 2, now=1.0).holding is None
    broken = state.watch_broken("a", 2, now=1.0)
    assert broken.watch_broken("a", 2, now=7.0) is broken


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), max_size=30
    )
)
def test_whatever_comes_terms_and_epochs_of_the_holder_never_fall(calls: list[tuple[str, int, int, int]]) -> None:
    state, highest = IDLE, {"a": 0, "b": 0}
    for now, (job, term, epoch, action) in enumerate(calls):
        call, before = JobCall(job, term, epoch), state
        actions = (
            lambda state=state, job=job, term=term, now=now: reserve(state, job, term=term, now=float(now)),
            lambda state=state, call=call: state.begin_epoch(call),
            lambda state=state, call=call: state.watch_opened(call),
            lambda state=state, call=call: state.admit_in_epoch(call),
            lambda state=state, call=call: state.admit(call).released(),
        )
        try:
            state = actions[action]()
        except EdgeswarmError:
            assert state is before
            continue
        assert term >= highest[job]
        highest[job] = term
        if state.holding is not None and before.holding is not None:
            assert state.holding.job_id == before.holding.job_id
            assert state.holding.epoch >= before.holding.epoch
