"""Whether a training's shares are to follow the speed that its devices show. Pure.

epoch 1   rounds 0 .. 5      shares as planned
              look: is what would be saved in the rounds that are left more than what moving costs?
epoch 2   rounds 6 .. 11     the same workers, which keep their layers, with other shares
              look ...
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from edgeswarm.plan import Plan
from edgeswarm.prepare_parts import FETCH_LAYERS
from edgeswarm.profile import PlanningInstance
from edgeswarm.wire.v1 import agent_pb2

from .events import RoundDone
from .planner.moved_shares import MovedShares, moved_shares

# The first rounds of workers that have just been made ready find memory and caches cold.
COLD_ROUNDS = 3
LEAST_ROUNDS = 3
RECENT_ROUNDS = 8
# What one look differs from the next by, where nothing has changed.
LEAST_GAIN = 0.03


def worthwhile_move(
    instance: PlanningInstance,
    plan: Plan,
    done: Sequence[RoundDone],
    *,
    since_round: int,
    rounds_left: int,
    cost_seconds: float,
) -> MovedShares | None:
    """The plan with shares by the speed of the last rounds, where that pays; None where it doesn't.

    done: the training's rounds so far. since_round: the one from which on this plan was followed. cost_seconds: what moving
    is expected to take.
    """
    warm = [each for each in done if each.round >= since_round + COLD_ROUNDS and each.samples == plan.mini_batch]
    recent = warm[-RECENT_ROUNDS:]
    if len(recent) < LEAST_ROUNDS:
        return None
    moved = moved_shares(instance, plan, computing_seconds(recent))
    if moved is None or moved.gain < LEAST_GAIN:
        return None
    saved_seconds = moved.gain * statistics.median(each.seconds for each in recent) * rounds_left
    return moved if saved_seconds > cost_seconds else None


def computing_seconds(rounds: Sequence[RoundDone]) -> Mapping[str, float]:
    """Forward and backward of a round, by device: the median, without what slows a round at all devices alike.

        round      4      5      6                     4      5      6
        a        2.0    3.0    2.1       by 1.4 in   2.0    2.1    2.1
        b        1.1    1.4    1.0       round 5     1.1    1.0    1.0

    A hot summer's day, or a machine that emulates all of them: it says nothing about their shares, and in a few rounds it hides
    what does.
    """
    seconds = {
        device: [each.parts[device].forward + each.parts[device].backward for each in rounds]
        for device in rounds[-1].parts
    }
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


def moving_seconds(prepared: Mapping[str, agent_pb2.PrepareReply]) -> float:
    """What moving is expected to take: workers get ready once more, but for their layers. prepared: how it was the last time."""
    return max(
        sum(seconds for part, seconds in reply.seconds.items() if part != FETCH_LAYERS) for reply in prepared.values()
    )
