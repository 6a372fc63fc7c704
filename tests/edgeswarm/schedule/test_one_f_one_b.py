from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.schedule.one_f_one_b import OneForwardOneBackward
from edgeswarm.schedule.policies import make_policy
from edgeswarm.schedule.policy import Action, ActionKind


def order_of(policy: OneForwardOneBackward) -> list[str]:
    """What it runs from here on where everything is ready."""
    order = []
    while not policy.is_done:
        action = policy.next_action(lambda _: True)
        assert action is not None
        order.append(f"{action.kind.name[0]}{action.micro_batch}")
        policy.finished(action)
    return order


def test_the_last_stage_alternates() -> None:
    policy = OneForwardOneBackward(range(3), in_flight=1)
    assert order_of(policy) == ["F0", "B0", "F1", "B1", "F2", "B2"]


def test_a_replica_that_is_late_takes_turns() -> None:
    """Three forwards are done, and by now everything else is ready: the next stage must not wait for all backwards."""
    policy = OneForwardOneBackward(range(6), in_flight=3)
    for index in range(3):
        policy.finished(Action(ActionKind.FORWARD, index))
    assert order_of(policy) == ["B0", "F3", "B1", "F4", "B2", "F5", "B3", "B4", "B5"]


def test_nothing_runs_that_is_not_ready_and_no_more_than_in_flight_is_begun() -> None:
    policy = OneForwardOneBackward(range(5), in_flight=3)
    only_forwards = lambda action: action.kind is ActionKind.FORWARD  # noqa: E731
    for expected in range(3):
        action = policy.next_action(only_forwards)
        assert action == Action(ActionKind.FORWARD, expected)
        policy.finished(action)
    assert policy.next_action(only_forwards) is None
    assert policy.awaited() == (Action(ActionKind.BACKWARD, 0),)


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted),
    st.integers(1, 6),
    st.lists(st.booleans(), max_size=200),
)
def test_any_order_of_arrivals_keeps_the_bound_and_the_index_order(
    micro_batches: list[int], in_flight: int, ready: list[bool]
) -> None:
    policy = OneForwardOneBackward(micro_batches, in_flight=in_flight)
    ran: dict[ActionKind, list[int]] = {kind: [] for kind in ActionKind}
    chances = iter(ready)
    while not policy.is_done:
        action = policy.next_action(lambda _: next(chances, True))
        if action is not None:
            policy.finished(action)
            ran[action.kind].append(action.micro_batch)
            assert 0 <= policy.in_flight <= in_flight
    assert ran[ActionKind.FORWARD] == ran[ActionKind.BACKWARD] == micro_batches


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        OneForwardOneBackward(range(2), in_flight=0)
    with pytest.raises(ValueError, match="ascending"):
        OneForwardOneBackward([1, 0], in_flight=1)
    with pytest.raises(ValueError, match="not to run"):
        OneForwardOneBackward(range(2), in_flight=1).finished(Action(ActionKind.BACKWARD, 0))
    with pytest.raises(ValueError, match="1f1b"):
        make_policy("zigzag", range(2), in_flight=1)
