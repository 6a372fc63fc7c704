"""The engine against a few lines that know nothing of events: 1F1B without replicas on links that nothing shares.

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
from edgeswarm_coordinator.simulator.simulate import round_seconds

INFINITE = float("inf")


def plain_1f1b(
    forward: list[float], backward: list[float], link: list[float], in_flight: list[int], count: int
) -> float:
    """Seconds of a round. link[p]: of a frame between stage p and the next, each way, one at a time.

    inputs[p][m], gradients[p][m]: when they are there; infinite as long as nobody knows.
    """
    stages = len(forward)
    inputs = [[0.0] * count] + [[INFINITE] * count for _ in range(stages - 1)]
    gradients = [[INFINITE] * count for _ in range(stages)]
    forwards, backwards, free = [0] * stages, [0] * stages, [0.0] * stages
    backward_was_last = [False] * stages
    sent_forward, sent_backward = [0.0] * stages, [0.0] * stages

    def next_start(stage: int) -> tuple[float, bool]:
        """When the stage begins its next action by what is known, and whether that is a backward."""
        f, b = forwards[stage], backwards[stage]
        may_forward = f < count and f - b < in_flight[stage]
        start_forward = max(free[stage], inputs[stage][f]) if may_forward else INFINITE
        start_backward = max(free[stage], gradients[stage][b]) if b < f else INFINITE
        both_ready = start_backward == start_forward  # as soon as the stage is free: they take turns
        is_backward = not backward_was_last[stage] if both_ready else start_backward < start_forward
        return min(start_forward, start_backward), is_backward

    while min(backwards) < count:
        stage = min(range(stages), key=lambda one: next_start(one)[0])
        start, is_backward = next_start(stage)
        backward_was_last[stage] = is_backward
        if is_backward:
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
    # One more than there are stages: by its fast links every card has room for all transfers at once.
    names = [f"device{place}" for place in range(stages + 1)]
    frame = 10_000_000
    rates = [[1e15] * (stages + 1) for _ in names]
    for place in range(stages - 1):
        rates[place][place + 1] = rates[place + 1][place] = frame / link[place]
    instance = PlanningInstance(
        model=ModelCosts(0, tuple(LayerCosts(f"layer{place}", 0, frame, 0) for place in range(stages))),
        profiles={"all": DeviceProfile((1,), (tuple(forward),), (tuple(backward),))},
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
    )
    expected = plain_1f1b(forward, backward, link, in_flight, count)
    assert round_seconds(instance, plan) == pytest.approx(expected, rel=1e-6)
