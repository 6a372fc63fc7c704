from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.config import LOST_SECONDS
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.agents import PROBE_SECONDS
from edgeswarm_coordinator.job_state import (
    ANSWER_SECONDS,
    VERDICT_WAIT_SECONDS,
    Cancelled,
    Failed,
    Freed,
    Happening,
    Heard,
    JobState,
    OwnFailure,
    Phase,
    PhaseBegins,
    ProbeAnswered,
    RoundsFinished,
    Tick,
    WatchBroken,
    Watched,
    advance,
)

SILENCE_SECONDS = LOST_SECONDS - ANSWER_SECONDS


def run(*steps: tuple[float, Happening], state: JobState | None = None) -> tuple[JobState, list[str]]:
    """The state after these happenings at these times, and everything that was to be probed."""
    current = state or JobState()
    probed: list[str] = []
    for now, what in steps:
        current, wanted = advance(current, what, now=now)
        probed += wanted
    return current, probed


def running(*devices: str, rounds: int = 10) -> JobState:
    steps: list[tuple[float, Happening]] = [(0.0, Watched(device)) for device in devices]
    return run(*steps, (0.0, PhaseBegins(Phase.RUNNING, epoch=1, end_round=rounds)))[0]


def broke(reporter: str, suspect: str) -> Failed:
    error = EdgeswarmError(ErrorCode.LINK_BROKEN, f"{reporter}: the link to {suspect} broke.")
    return Failed(reporter, error, suspects=(suspect,))


def died(device: str) -> Failed:
    return Failed(device, EdgeswarmError(ErrorCode.WORKER_DIED, f"The worker on {device} died."))


GONE = EdgeswarmError(ErrorCode.DEVICE_UNREACHABLE, "It can't be reached.")


def test_all_devices_finished_is_gathering() -> None:
    state, _ = run((1.0, RoundsFinished("a", 1, 10)), state=running("a", "b"))
    assert state.phase is Phase.RUNNING
    state, _ = run((2.0, RoundsFinished("b", 1, 10)), state=state)
    assert state.phase is Phase.GATHERING
    assert run((3.0, PhaseBegins(Phase.DONE)), state=state)[0].phase is Phase.DONE


@pytest.mark.parametrize("early", [RoundsFinished("b", 0, 10), RoundsFinished("b", 1, 9), RoundsFinished("x", 1, 10)])
def test_what_belongs_to_another_epoch_round_or_device_does_not_count(early: RoundsFinished) -> None:
    state, _ = run((1.0, RoundsFinished("a", 1, 10)), (1.0, early), state=running("a", "b"))
    assert state.phase is Phase.RUNNING


def test_a_dead_worker_is_the_verdict_whatever_its_peers_said_before() -> None:
    state, probed = run((1.0, broke("b", "a")), (1.1, broke("c", "a")), state=running("a", "b", "c"))
    assert not state.phase.over
    assert probed == ["a"]
    state, _ = run((1.2, died("a")), state=state)
    assert state.phase is Phase.FAILED
    assert state.error is not None
    assert state.error.message == "The worker on a died."


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_reports_does_not_change_the_verdict(order: tuple[int, ...]) -> None:
    reports = [broke("b", "a"), broke("c", "a"), died("a"), broke("c", "b")]
    steps = [(1.0 + 0.1 * place, reports[index]) for place, index in enumerate(order)]
    state, _ = run(*steps, (9.0, Tick()), state=running("a", "b", "c"))
    assert state.error is not None
    assert state.error.code is ErrorCode.WORKER_DIED


def test_a_broken_link_between_two_that_live_is_the_verdict_after_a_second() -> None:
    state, _ = run((1.0, broke("b", "a")), (1.1, ProbeAnswered("a", True)), state=running("a", "b"))
    assert not state.phase.over
    state, _ = run((1.0 + VERDICT_WAIT_SECONDS, Tick()), state=state)
    assert state.error is not None
    assert state.error.code is ErrorCode.LINK_BROKEN


def test_a_verdict_waits_for_the_probes_answer_a_little_longer() -> None:
    state, _ = run((1.0, broke("b", "a")), (2.2, Tick()), state=running("a", "b"))
    assert not state.phase.over
    state, _ = run((2.3, ProbeAnswered("a", False)), state=state)
    assert state.error is not None
    assert state.error.code is ErrorCode.DEVICE_LOST
    assert "a was lost" in state.error.message


def test_an_agent_that_vanishes_is_lost_as_soon_as_the_probe_fails() -> None:
    state, probed = run((1.0, WatchBroken("a", GONE)), state=running("a", "b"))
    assert probed == ["a"]
    state, _ = run((1.01, ProbeAnswered("a", False)), state=state)
    assert state.error is not None
    assert state.error.code is ErrorCode.DEVICE_LOST


def test_where_nobody_answers_it_is_this_machines_network() -> None:
    state, probed = run((SILENCE_SECONDS, Tick()), state=running("a", "b", "c"))
    assert probed == ["a", "b", "c"]
    state, _ = run((6.0, ProbeAnswered("a", False)), (6.1, ProbeAnswered("b", False)), state=state)
    assert not state.phase.over
    state, _ = run((6.2, ProbeAnswered("c", False)), state=state)
    assert state.error is not None
    assert "this machine's own network" in state.error.remedy


def test_one_of_several_that_are_silent_is_lost_where_the_others_answer() -> None:
    state, _ = run((SILENCE_SECONDS, Tick()), (6.0, ProbeAnswered("a", False)), state=running("a", "b", "c"))
    assert not state.phase.over
    state, _ = run((6.1, ProbeAnswered("b", True)), (6.2, ProbeAnswered("c", True)), state=state)
    assert state.error is not None
    assert "a was lost" in state.error.message


def test_an_agent_that_answers_but_ended_its_stream_dropped_the_job() -> None:
    state, _ = run(
        (1.0, WatchBroken("a", GONE)), (1.1, ProbeAnswered("a", True)), (2.1, Tick()), state=running("a", "b")
    )
    assert state.error is not None
    assert "dropped the job" in state.error.message


def test_silence_is_probed_and_slow_is_not_dead() -> None:
    state, probed = run((2.0, Heard("b")), (SILENCE_SECONDS, Tick()), (5.1, Tick()), state=running("a", "b"))
    assert probed == ["a"]
    state, probed = run((5.2, ProbeAnswered("a", True)), (5.3, Tick()), (60.0, Heard("b")), state=state)
    assert not state.phase.over
    assert probed == ["a"]  # silent again
    state, _ = run((60.1, ProbeAnswered("a", False)), state=state)
    assert state.error is not None
    assert state.error.code is ErrorCode.DEVICE_LOST


@pytest.mark.parametrize("lost_seconds", [3.0, 5.0, 7.0])
def test_silence_leaves_time_for_a_probe_within_what_the_user_wants(lost_seconds: float) -> None:
    state = replace(running("a", "b"), lost_seconds=lost_seconds)
    before, at_most = lost_seconds - ANSWER_SECONDS - 0.1, lost_seconds - PROBE_SECONDS
    assert run((before, Tick()), state=state)[1] == []
    state, probed = run((before, Heard("b")), (at_most, Tick()), state=state)
    assert probed == ["a"]
    state, _ = run((lost_seconds, ProbeAnswered("a", False)), state=state)
    assert state.error is not None
    assert state.error.code is ErrorCode.DEVICE_LOST


def test_a_probe_that_fails_says_nothing_of_a_device_that_was_heard_since() -> None:
    """It stood still for seconds, and has more to do than to answer within one."""
    state, probed = run((SILENCE_SECONDS, Tick()), state=running("a"))
    assert probed == ["a"]
    later: list[tuple[float, Happening]] = [(5.3, Heard("a")), (6.2, ProbeAnswered("a", False)), (9.0, Tick())]
    state, probed = run(*later, state=state)
    assert not state.phase.over
    assert probed == []
    assert run((5.3 + SILENCE_SECONDS, Tick()), state=state)[1] == ["a"]


def test_a_freed_device_is_of_no_interest() -> None:
    state, probed = run((1.0, Freed("b")), (1.1, WatchBroken("b", GONE)), (1.2, died("b")), state=running("a", "b"))
    assert not state.phase.over
    assert probed == []
    assert run((2.0, RoundsFinished("a", 1, 10)), state=state)[0].phase is Phase.GATHERING


def test_an_error_of_our_own_machine_is_the_verdict_at_once() -> None:
    error = EdgeswarmError(ErrorCode.DATA_FAILED, "The data service ended.")
    assert run((1.0, OwnFailure(error)), state=running("a"))[0].error is error


def test_cancel_is_an_interruption() -> None:
    state, _ = run((1.0, Cancelled()), state=running("a"))
    assert state.phase is Phase.INTERRUPTED
    assert state.error is not None
    assert state.error.exit_code == 130


DEVICES = ("a", "b", "c")
happenings = st.one_of(
    st.sampled_from(DEVICES).map(Heard),
    st.sampled_from(DEVICES).map(died),
    st.tuples(st.sampled_from(DEVICES), st.sampled_from(DEVICES)).map(lambda pair: broke(*pair)),
    st.sampled_from(DEVICES).map(lambda device: WatchBroken(device, GONE)),
    st.tuples(st.sampled_from(DEVICES), st.booleans()).map(lambda pair: ProbeAnswered(*pair)),
    st.sampled_from(DEVICES).map(lambda device: RoundsFinished(device, 1, 10)),
    st.sampled_from(DEVICES).map(Freed),
    st.just(Tick()),
    st.just(Cancelled()),
)


@given(st.lists(st.tuples(st.floats(0, 3), happenings), max_size=25))
def test_the_first_verdict_latches_and_probes_are_asked_once(steps: list[tuple[float, Happening]]) -> None:
    state, now, verdict = running(*DEVICES), 0.0, None
    for pause, what in steps:
        now += pause
        before = state.probing
        state, wanted = advance(state, what, now=now)
        assert not set(wanted) & (before - {what.device if isinstance(what, ProbeAnswered) else ""})
        assert set(wanted) <= set(state.devices)
        assert (state.error is not None) == (state.phase in (Phase.FAILED, Phase.INTERRUPTED))
        if verdict is not None:
            assert state.error is verdict
        verdict = state.error


@given(st.lists(happenings, max_size=10))
def test_a_report_always_leads_to_a_verdict_in_the_end(whats: list[Happening]) -> None:
    steps: list[tuple[float, Happening]] = [(0.01 * number, what) for number, what in enumerate(whats)]
    state, _ = run(*steps, (10.0, Tick()), state=running(*DEVICES))
    assert not state.reports or state.phase.over
