"""PipeDream's program: by hand, against plain enumeration, and against plans that the published optimizer made.

The published one walks through sets whose order is not fixed, so that of equally fast plans it takes any. The same plan
is asked for where just one is fastest; elsewhere its plan must be among the fastest ones, choice by choice.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm_coordinator.planner.comparison.pipedream_program import (
    Level,
    ModelStates,
    optimize,
    solve_level,
)

from .pipedream_graph import LayerGraph

FOLDER = Path(__file__).parents[5] / "shared" / "data" / "pipedream"
REFERENCE = FOLDER / "reference_plans.json"
RUNS = json.loads(REFERENCE.read_text())["runs"] if REFERENCE.exists() else []
# One state after another: the number of a state is the same in any order.
CHAINS = ("alexnet", "vgg16")


def chain(seconds: list[float], parameters: list[float], outputs: list[float]) -> ModelStates:
    return ModelStates.of_chain(
        np.array(seconds),
        layer_parameter_bytes=parameters,
        layer_activation_bytes=[0.0] * len(seconds),
        layer_resident_bytes=parameters,
        output_bytes=outputs,
    )


def model_of(run: dict[str, Any]) -> str:
    return str(run["profile"]).split("/")[2]


@cache
def states_of(model: str) -> ModelStates:
    return LayerGraph.parse((FOLDER / f"{model}.graph.txt").read_text()).states()


def stage_seconds(states: ModelStates, cut: int, last: int, *, machines: int, bandwidth: float) -> float:
    """One mini-batch in states cut + 1 to last on some machines, written down a second time; cut is -1 for the first stage."""
    compute, weights = float(states.compute_seconds[last]), float(states.parameter_bytes[last])
    if cut >= 0:
        compute -= float(states.compute_seconds[cut])
        weights -= float(states.parameter_bytes[cut])
    return (compute + 4 * (machines - 1) * weights / (bandwidth * machines)) / machines


def slowest_step(states: ModelStates, cut: int, last: int, *, machines: int, bandwidth: float) -> float:
    """A stage behind a cut, or a transfer at its ends."""
    ends = [cut] if last == states.count - 1 else [cut, last]
    transfers = [2 * float(states.output_bytes[state]) / (bandwidth * machines) for state in ends]
    return max(stage_seconds(states, cut, last, machines=machines, bandwidth=bandwidth), *transfers)


def best_by_enumeration(states: ModelStates, last: int, machines: int, bandwidth: float) -> float:
    whole = stage_seconds(states, -1, last, machines=machines, bandwidth=bandwidth)
    return min(
        whole,
        *(
            max(
                best_by_enumeration(states, cut, machines - replicas, bandwidth),
                slowest_step(states, cut, last, machines=replicas, bandwidth=bandwidth),
            )
            for cut in range(last)
            for replicas in range(1, machines)
        ),
        whole,
    )


positive = st.floats(0.1, 10.0)


@settings(max_examples=40, deadline=None)
@given(layers=st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=5), machines=st.integers(1, 4))
def test_equals_plain_enumeration(layers: list[tuple[float, float, float]], machines: int) -> None:
    seconds, parameters, outputs = (list(column) for column in zip(*layers, strict=True))
    states = chain(seconds, parameters, outputs)
    found = optimize(states, [Level(machines, 2.0)])
    assert found is not None
    assert found.seconds == pytest.approx(best_by_enumeration(states, states.count - 1, machines, 2.0))
    assert [stage.first for stage in found.stages] + [states.count] == [0] + [stage.end for stage in found.stages]
    assert sum(stage.replicas[0] for stage in found.stages) == machines


def test_two_levels_replicate_a_pipeline() -> None:
    """Two layers, two rooms of two machines: fast links inside cut between the layers, both rooms have both stages."""
    states = chain([4.0, 4.0], [1e-3, 1e-3], [1.0, 0.0])
    found = optimize(states, [Level(2, 1000.0), Level(2, 0.01)])
    assert found is not None
    # Inside, a layer a machine takes 4 seconds, and 2 * 1 / 1000 to send on; both layers on both machines take as long and
    # their all-reduce. Across, to send on would take 2 * 1 / (0.01 * 1) seconds.
    assert [(stage.first, stage.end, stage.replicas) for stage in found.stages] == [(0, 1, (1, 2)), (1, 2, (1, 2))]
    # Half of the 4 seconds of a room, and of 4 W / (2 * bandwidth) for the weights, which the room's 2 machines share.
    assert found.seconds == pytest.approx((4.0 + 4 * 2e-3 / (0.01 * 2) / 2) / 2, rel=1e-12)


def test_memory_holds_activations_as_often_as_mini_batches_are_in_flight() -> None:
    states = ModelStates.of_chain(
        np.array([1.0, 1.0]),
        layer_parameter_bytes=[100.0, 100.0],
        layer_activation_bytes=[5.0, 5.0],
        layer_resident_bytes=[10.0, 10.0],
        output_bytes=[1e-6, 0.0],
    )
    # Cut in two, the first stage has two in flight: 10 + 2 * 5 bytes; together the layers take 20 + 10.
    found = optimize(states, [Level(2, 1.0)], memory_bytes=20.0)
    assert found is not None
    assert [(stage.first, stage.end) for stage in found.stages] == [(0, 1), (1, 2)]
    assert optimize(states, [Level(2, 1.0)], memory_bytes=19.0) is None


@pytest.mark.shared
@pytest.mark.skipif(not RUNS, reason="the folder of public profiles is not beside the checkout")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{model_of(run)}-{run['machines']}-{run['bandwidth_Bps']:.0f}")
def test_reproduces_the_published_optimizer(run: dict[str, Any]) -> None:
    states, bandwidth = states_of(model_of(run)), float(run["bandwidth_Bps"])
    level = Level(int(run["machines"]), bandwidth)
    found = optimize(states, [level])
    assert found is not None
    assert found.seconds == pytest.approx(run["time_per_stage_s"], rel=1e-9)
    best = solve_level(states, level).seconds[:, 0]

    def walks(last: int, machines: int, stages: list[list[float]]) -> list[list[tuple[int, int, int]]]:
        """All ways to choose the reference's stages so that every choice is a best one, as (first, end, replicas)."""
        first, _, seconds, replicas = stages[-1]
        if len(stages) == 1:
            whole = stage_seconds(states, -1, last, machines=machines, bandwidth=bandwidth)
            return [[(0, last + 1, machines)]] if replicas == machines and as_good(whole, last, machines) else []
        cuts = [int(first) - 1]
        if model_of(run) not in CHAINS:
            # A graph's states may be numbered in more than one order: known by the seconds before them.
            compute = states.compute_seconds[last] - seconds
            cuts = list(np.flatnonzero(states.before[last] & (np.abs(states.compute_seconds - compute) < 1e-9)))
        left = machines - int(replicas)
        return [
            [*walk, (cut + 1, last + 1, int(replicas))]
            for cut in cuts
            for step in [slowest_step(states, cut, last, machines=int(replicas), bandwidth=bandwidth)]
            if as_good(max(step, float(best[left - 1, cut])), last, machines)
            for walk in walks(cut, left, stages[:-1])
        ]

    def as_good(seconds: float, last: int, machines: int) -> bool:
        return seconds <= float(best[machines - 1, last]) * (1 + 1e-9)

    ours = [(stage.first, stage.end, stage.replicas[0]) for stage in found.stages]
    theirs = walks(states.count - 1, level.components, run["stages"])
    assert theirs, f"{run['stages']} are not among the fastest; ours: {ours}"
    if model_of(run) in CHAINS:
        assert theirs == [[(first, end, replicas) for first, end, _, replicas in run["stages"]]]
