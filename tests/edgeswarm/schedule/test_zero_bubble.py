from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.schedule.policies import ZERO_BUBBLE, has_weights_apart, make_policy
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.schedule.zero_bubble import ZeroBubble


def order_of(policy: ZeroBubble) -> list[str]:
    """What it runs from here on where everything is ready."""
    order = []
    while not policy.is_done:
        action = policy.next_action(lambda _: True)
        assert action is not None
        order.append(f"{action.kind.name[0]}{action.micro_batch}")
        policy.finished(action)
    return order


def test_a_single_place_has_no_room_for_waiting() -> None:
    assert order_of(ZeroBubble(range(2), in_flight=1)) == ["F0", "B0", "W0", "F1", "B1", "W1"]


def test_weights_wait_while_there_is_room_and_anything_else_to_do() -> None:
    assert order_of(ZeroBubble(range(4), in_flight=3)) == [
        "F0",
        "B0",
        "F1",
        "B1",
        "F2",
        "B2",
        "W0",
        "F3",
        "B3",
        "W1",
        "W2",
        "W3",
    ]


def test_weights_fill_the_time_in_which_nothing_is_ready() -> None:
    policy = ZeroBubble(range(3), in_flight=3)
    for index in range(2):
        policy.finished(Action(ActionKind.FORWARD, index))
    policy.finished(Action(ActionKind.BACKWARD, 0))
    nothing = lambda _: False  # noqa: E731
    assert policy.next_action(nothing) == Action(ActionKind.WEIGHTS, 0)
    policy.finished(Action(ActionKind.WEIGHTS, 0))
    assert policy.next_action(nothing) is None
    assert policy.awaited() == (Action(ActionKind.FORWARD, 2), Action(ActionKind.BACKWARD, 1))


def test_weights_make_room_for_a_forward_whose_turn_it_is() -> None:
    """Were the next backward first, the stage behind would get no forward until all backwards that wait here are done."""
    policy = ZeroBubble(range(4), in_flight=2)
    for index in range(2):
        policy.finished(Action(ActionKind.FORWARD, index))
    policy.finished(Action(ActionKind.BACKWARD, 0))
    assert policy.next_action(lambda _: True) == Action(ActionKind.WEIGHTS, 0)
    # Without its frames it is nobody's turn, and the stage before waits for the backward.
    only_backwards = lambda action: action.kind is ActionKind.BACKWARD  # noqa: E731
    assert policy.next_action(only_backwards) == Action(ActionKind.BACKWARD, 1)


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted),
    st.integers(1, 6),
    st.lists(st.booleans(), max_size=200),
)
def test_any_order_of_arrivals_keeps_the_bound_and_the_index_order(
    micro_batches: list[int], in_flight: int, ready: list[bool]
) -> None:
    policy = ZeroBubble(micro_batches, in_flight=in_flight)
    ran: dict[ActionKind, list[int]] = {kind: [] for kind in ActionKind}
    chances = iter(ready)
    while not policy.is_done:
        action = policy.next_action(lambda _: next(chances, True))
        if action is None:
            assert all(waiting.kind is not ActionKind.WEIGHTS for waiting in policy.awaited())
        else:
            policy.finished(action)
            ran[action.kind].append(action.micro_batch)
            assert 0 <= policy.in_flight <= in_flight
            assert len(ran[ActionKind.WEIGHTS]) <= len(ran[ActionKind.BACKWARD]) <= len(ran[ActionKind.FORWARD])
    assert ran[ActionKind.FORWARD] == ran[ActionKind.BACKWARD] == ran[ActionKind.WEIGHTS] == micro_batches


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ZeroBubble(range(2), in_flight=0)
    with pytest.raises(ValueError, match="ascending"):
        ZeroBubble([1, 0], in_flight=1)
    with pytest.raises(ValueError, match="not to run"):
        ZeroBubble(range(2), in_flight=1).finished(Action(ActionKind.WEIGHTS, 0))


def test_it_goes_by_its_name() -> None:
    assert isinstance(make_policy(ZERO_BUBBLE, range(2), in_flight=1), ZeroBubble)
    assert has_weights_apart(ZERO_BUBBLE)
    assert not has_weights_apart("1f1b")
