"""The engine against a few lines that know nothing of events: schedules without replicas on links that nothing shares.

Every action's start is the latest of: the end of the action before it on its device, and what it waits for. Which action
comes next follows from time alone, so devices are advanced in the order of time.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import DeviceDescription, DeviceProfile, Network, PlanningInstance, TrainingSettings
from edgeswarm.schedule.policies import SCHEDULES
from edgeswarm_coordinator.simulator.engine import Engine

INFINITE = float("inf")


def plain_pipeline(
    forward: list[float],
    backward: list[float],
    weights: list[float] | None,
    link: list[float],
    in_flight: list[int],
    *,
    count: int,
) -> float:
    """Seconds of a first round. link[p]: of a frame between stage p and the next, each way, one at a time.

    weights: of their gradients, where they come apart; None where the backward is all of it.

    inputs[p][m], gradients[p][m]: when they are there; infinite as long as nobody knows.
    """
    stages = len(forward)
    inputs = [[0.0] * count] + [[INFINITE] * count for _ in range(stages - 1)]
    gradients = [[INFINITE] * count for _ in range(stages)]
    forwards, backwards, free = [0] * stages, [0] * stages, [0.0] * stages
    given_back = backwards if weights is None else [0] * stages
    backward_was_last = [False] * stages
    sent_forward, sent_backward = [0.0] * stages, [0.0] * stages

    def next_start(stage: int) -> tuple[float, str]:
        """When the stage begins its next action by what is known, and which."""
        f, b, done = forwards[stage], backwards[stage], given_back[stage]
        has_room = f - done < in_flight[stage]
        may_forward = f < count and has_room
        start_forward = max(free[stage], inputs[stage][f]) if may_forward else INFINITE
        start_backward = max(free[stage], gradients[stage][b]) if b < f else INFINITE
        both_ready = start_backward == start_forward  # as soon as the stage is free: they take turns
        is_backward = not backward_was_last[stage] if both_ready else start_backward < start_forward
        start = min(start_forward, start_backward)
        if done < b:
            is_turn = backward_was_last[stage] and f < count and not has_room and inputs[stage][f] <= free[stage]
            if is_turn or start > free[stage]:
                return free[stage], "weights"
        return start, "backward" if is_backward else "forward"

    while min(given_back) < count:
        stage = min(range(stages), key=lambda one: next_start(one)[0])
        start, kind = next_start(stage)
        if kind == "weights":
            assert weights is not None
            free[stage] = start + weights[stage]
            given_back[stage] += 1
            continue
        backward_was_last[stage] = kind == "backward"
        if kind == "backward":
            number = backwards[stage]
            free[stage] = end = start + backward[stage]
            backwards[stage] += 1
            if stage:
                sent_backward[stage] = max(sent_backward[stage], end) + link[stage - 1]
                gradients[stage - 1][number] = sent_backward[stage]
        else:
            number = forwards[stage]
            free[stage] = end = start + forward[stage]
            forwards[stage] += 1
            if stage + 1 == stages:
                gradients[stage][number] = end
            else:
                sent_forward[stage] = max(sent_forward[stage], end) + link[stage]
                inputs[stage + 1][number] = sent_forward[stage]
    return max(free)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_pipeline_without_replicas(data: st.DataObject) -> None:
    stages, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    seconds = st.sampled_from([0.02, 0.03, 0.07, 0.13, 0.31, 0.61, 1.09])
    # Roots have no common measure: no two things happen at the same moment, where either may come first.
    forward = [data.draw(seconds) + 0.0011 * math.sqrt(2 + place) for place in range(stages)]
    backward = [data.draw(seconds) + 0.0013 * math.sqrt(11 + place) for place in range(stages)]
    link = [data.draw(seconds) + 0.0017 * math.sqrt(19 + place) for place in range(stages)]
    in_flight = [data.draw(st.integers(1, 6)) for _ in range(stages)]
    schedule = data.draw(st.sampled_from(sorted(SCHEDULES)))
    part = data.draw(st.sampled_from([0.3, 0.5, 0.7]))
    # One more than there are stages: by its fast links every card has room for all transfers at once.
    names = [f"device{place}" for place in range(stages + 1)]
    frame = 10_000_000
    rates = [[1e15] * (stages + 1) for _ in names]
    for place in range(stages - 1):
        rates[place][place + 1] = rates[place + 1][place] = frame / link[place]
    profile = DeviceProfile(
        (1,),
        (tuple(forward),),
        (tuple(backward),),
        rest_parts=(1.02 - part,) * stages,
        weights_parts=(part,) * stages,
    )
    instance = PlanningInstance(
        model=ModelCosts(0, tuple(LayerCosts(f"layer{place}", 0, frame, 0) for place in range(stages))),
        profiles={"all": profile},
        devices=tuple(DeviceDescription(name, "all", 10**12) for name in names),
        network=Network(0.0, tuple(tuple(row) for row in rates)),
        training=TrainingSettings(count),
    )
    plan = Plan(
        planner="by hand",
        micro_batch=1,
        micro_batches=count,
        stages=tuple(
            Stage(place, place + 1, {name: 1}, limit)
            for place, (name, limit) in enumerate(zip(names, in_flight, strict=False))
        ),
        schedule=schedule,
    )
    rest, weights = backward, None
    if plan.has_weights_apart:
        rest, weights = [(1.02 - part) * seconds for seconds in backward], [part * seconds for seconds in backward]
    expected = plain_pipeline(forward, rest, weights, link, in_flight, count=count)
    engine = Engine(instance, plan)
    engine.run(0)
    assert engine.end_of(0) == pytest.approx(expected, rel=1e-6)
