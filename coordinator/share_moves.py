"""Whether a training's shares are to follow the speed that its devices show. Pure.

epoch 1   rounds 0 .. 5      shares as planned
              look: is what would be saved in the rounds that are left more than what moving costs?
epoch 2   rounds 6 .. 11     the same workers, which keep their layers, with other shares
              look ...

Rounds of an earlier epoch count, too, by what their shares would take now: a few rounds alone say little where they scatter.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeswarm.plan import Plan
from edgeswarm.prepare_parts import FETCH_LAYERS
from edgeswarm.profile import PlanningInstance
from edgeswarm.wire.v1 import agent_pb2

from .events import RoundDone
from .planner.moved_shares import MovedShares, expected_seconds, moved_shares

# The first rounds of workers that have just been made ready find memory and caches cold.
COLD_ROUNDS = 3
LEAST_ROUNDS = 3
RECENT_ROUNDS = 12
# What one look differs from the next by, where nothing has changed.
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Followed:
    """A plan that the training has followed, from this round on."""

    first_round: int
    plan: Plan


def worthwhile_move(
    instance: PlanningInstance,
    followed: Sequence[Followed],
    done: Sequence[RoundDone],
    *,
    rounds_left: int,
    cost_seconds: float,
) -> MovedShares | None:
    """The plan with shares by the speed of the last rounds, where that pays; None where it doesn't.

    followed: in order, the plan that is followed now the last. done: the training's last rounds. cost_seconds: what moving
    is expected to take.
    """
    plan = followed[-1].plan
    warm = [(each, then) for each in done if (then := _warm(followed, each)) is not None]
    if sum(then is followed[-1] for _, then in warm) < LEAST_ROUNDS:
        return None
    recent = warm[-RECENT_ROUNDS:]
    seconds = computing_seconds([_as_with(instance, plan, *each) for each in recent])
    moved = moved_shares(instance, plan, seconds, earlier=[each.plan for each in followed[:-1]])
    if moved is None or moved.gain < LEAST_GAIN:
        return None
    saved_seconds = moved.gain * statistics.median(each.seconds for each, _ in recent) * rounds_left
    return moved if saved_seconds > cost_seconds else None


def computing_seconds(rounds: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The median of what each device took, round by round, without what slows a round at all devices alike.

        round      4      5      6                     4      5      6
        a        2.0    3.0    2.1       by 1.4 in   2.0    2.1    2.1
        b        1.1    1.4    1.0       round 5     1.1    1.0    1.0

    A hot summer's day, or a machine that emulates all of them: it says nothing about their shares, and in a few rounds it hides
    what does.
    """
    seconds = {device: [each[device] for each in rounds] for device in rounds[-1]}
    usual = {device: statistics.median(own) for device, own in seconds.items()}
    busy = [device for device in seconds if usual[device] > 0]
    if not busy:
        return usual
    slowness = [
        statistics.median(seconds[device][place] / usual[device] for device in busy) for place in range(len(rounds))
    ]
    return {
        device: statistics.median(
            own / slow if slow > 0 else own for own, slow in zip(seconds[device], slowness, strict=True)
        )
        for device in seconds
    }


def _warm(followed: Sequence[Followed], done: RoundDone) -> Followed | None:
    """The plan of a whole round of workers that had been at it for some rounds; None of another one."""
    then = next((each for each in reversed(followed) if each.first_round <= done.round), None)
    if then is None or done.round < then.first_round + COLD_ROUNDS or done.samples != then.plan.mini_batch:
        return None
    return then


def _as_with(instance: PlanningInstance, plan: Plan, done: RoundDone, then: Followed) -> dict[str, float]:
    """By device, forward and backward of a round, as they would have been with the plan's shares."""
    before, now = expected_seconds(instance, then.plan), expected_seconds(instance, plan)
    taken = {device: parts.forward + parts.backward for device, parts in done.parts.items()}
    return {device: own * now[device] / before[device] if before[device] > 0 else own for device, own in taken.items()}


def moving_seconds(prepared: Mapping[str, agent_pb2.PrepareReply]) -> float:
    """What moving is expected to take: workers get ready once more, but for their layers. prepared: how it was the last time."""
    return max(
        sum(seconds for part, seconds in reply.seconds.items() if part != FETCH_LAYERS) for reply in prepared.values()
    )
