"""When moving shares pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm.prepare_parts import FETCH_LAYERS
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.events import RoundDone, RoundParts
from edgeswarm_coordinator.planner.moved_shares import MovedShares
from edgeswarm_coordinator.share_moves import (
    COLD_ROUNDS,
    LEAST_GAIN,
    LEAST_ROUNDS,
    Followed,
    computing_seconds,
    moving_seconds,
    worthwhile_move,
)

from .planner.instances import make_instance

INSTANCE = make_instance((1.0, 1.0), (1.0, 1.0), mini_batch=12)
PLAN = Plan("by hand", 12, 1, (Stage(0, 2, {"a": 6, "b": 6}, 1),))
AS_EXPECTED = 36.0  # forward and backward of 6 samples


def rounds(
    first: int, end: int, *, a: float = AS_EXPECTED, b: float = AS_EXPECTED, samples: int = 12
) -> list[RoundDone]:
    return [
        RoundDone(
            round=number,
            rounds=100,
            epoch=0,
            loss=1.0,
            samples=samples,
            seconds=max(a, b),
            samples_per_second=0.0,
            seconds_left=None,
            stage_use=(1.0,),
            parts={
                "a": RoundParts(max(a, b), forward=a / 3, backward=a * 2 / 3),
                "b": RoundParts(max(a, b), forward=b / 3, backward=b * 2 / 3),
            },
        )
        for number in range(first, end)
    ]


def found(
    done: list[RoundDone], *followed: Followed, rounds_left: int = 90, cost_seconds: float = 20.0
) -> MovedShares | None:
    return worthwhile_move(
        INSTANCE, followed or [Followed(0, PLAN)], done, rounds_left=rounds_left, cost_seconds=cost_seconds
    )


def taken(done: list[RoundDone]) -> list[dict[str, float]]:
    return [{name: parts.forward + parts.backward for name, parts in each.parts.items()} for each in done]


SLOWER = 2 * AS_EXPECTED


def test_it_moves_when_it_pays() -> None:
    moved = found(rounds(0, 6, b=SLOWER))
    assert moved is not None
    assert moved.plan.stages[0].shares == {"a": 8, "b": 4}


def test_it_does_not_pay_near_the_end() -> None:
    """A third of 72 s is saved in each round that is left."""
    assert found(rounds(0, 6, b=SLOWER), rounds_left=1, cost_seconds=23.0) is not None
    assert found(rounds(0, 6, b=SLOWER), rounds_left=1, cost_seconds=25.0) is None


def test_cold_rounds_say_nothing() -> None:
    cold = rounds(0, COLD_ROUNDS, b=5 * AS_EXPECTED)
    assert found([*cold, *rounds(COLD_ROUNDS, 6)]) is None
    assert found(rounds(0, COLD_ROUNDS + LEAST_ROUNDS - 1, b=SLOWER)) is None
    # Workers that were made ready anew are cold again.
    assert found(rounds(0, 8, b=SLOWER), Followed(0, PLAN), Followed(6, PLAN)) is None
    assert found(rounds(0, 12, b=SLOWER), Followed(0, PLAN), Followed(6, PLAN)) is not None


def test_rounds_with_other_shares_count_by_what_they_would_take_now() -> None:
    """b, with 4 of 12 samples since round 8, had hiccups in two of three rounds: these alone would have it half as fast as a."""
    lopsided = replace(PLAN, stages=(Stage(0, 2, {"a": 8, "b": 4}, 1),))
    a, b = AS_EXPECTED * 8 / 6, AS_EXPECTED * 4 / 6
    since_then = [*rounds(8, 12, a=a, b=b), *rounds(12, 14, a=a, b=2 * b)]
    assert found(since_then, Followed(8, lopsided)) is None
    back = found([*rounds(0, 8), *since_then], Followed(0, PLAN), Followed(8, lopsided))
    assert back is not None
    assert back.plan.stages[0].shares == {"a": 6, "b": 6}


def test_one_slow_round_and_a_ragged_one_say_nothing() -> None:
    done = [*rounds(0, 8), *rounds(8, 9, b=5 * AS_EXPECTED), *rounds(9, 10)]
    assert computing_seconds(taken(done[3:])) == {"a": AS_EXPECTED, "b": AS_EXPECTED}
    assert found(done) is None
    assert found(rounds(0, 12, b=SLOWER, samples=7)) is None


def test_a_little_is_let_be() -> None:
    barely = 1.0 + LEAST_GAIN / 2
    assert found(rounds(0, 12, b=barely * AS_EXPECTED), cost_seconds=0.0) is None


def test_what_slows_all_of_a_round_alike_says_nothing_about_one_of_them() -> None:
    """b takes half as long as a, in rounds that took 1, 3 and 2 times as long; but for a hiccup of b's in the second."""
    done = [*rounds(3, 4, a=20.0, b=10.0), *rounds(4, 5, a=60.0, b=33.0), *rounds(5, 6, a=40.0, b=20.0)]
    seconds = computing_seconds(taken(done))
    assert seconds["a"] / seconds["b"] == pytest.approx(2.0)
    assert seconds["a"] == pytest.approx(40.0, rel=0.02)


def test_a_device_that_computed_nothing_took_nothing() -> None:
    assert computing_seconds(taken(rounds(3, 6, a=20.0, b=0.0))) == pytest.approx({"a": 20.0, "b": 0.0})
    assert computing_seconds(taken(rounds(3, 6, a=0.0, b=0.0))) == {"a": 0.0, "b": 0.0}


def test_the_cost_is_what_getting_ready_took_but_for_the_layers() -> None:
    replies = {
        "a": agent_pb2.PrepareReply(seconds={FETCH_LAYERS: 100.0, "rehearse": 2.0}),
        "b": agent_pb2.PrepareReply(seconds={FETCH_LAYERS: 1.0, "rehearse": 2.5, "build stage": 0.5}),
    }
    assert moving_seconds(replies) == 3.0
