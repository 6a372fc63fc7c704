"""What workers spend beside the model, explained by what they had to do."""

from __future__ import annotations

from dataclasses import astuple
from itertools import product
from typing import Any

import pytest

from bench.outside_model import Counts, Observation, costs_of, explained, observations, report_of
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.planner.planners import make_plan
from tests.coordinator.planner.instances import make_instance

COSTS = Counts(rounds=0.004, seconds=0.002, actions=0.0006, frames=0.0003, pieces=0.0005, megabytes=0.002)
CELL = "C-100-mobilenet_v2"


def observed(counts: Counts, seconds: float | None = None) -> Observation:
    outside = sum(explained(counts, COSTS).values()) if seconds is None else seconds
    return Observation(CELL, "edgeswarm", "nano-1", counts, outside, 10 * outside)


def many() -> list[Counts]:
    """In which no kind goes with another."""
    kinds = product((1.0, 9.0), (8.0, 64.0), (0.0, 48.0), (0.0, 32.0), (2.0, 40.0))
    return [Counts(1.0, *values) for values in kinds]


def test_what_each_thing_costs_is_found() -> None:
    found = costs_of([observed(counts) for counts in many()])
    assert astuple(found) == pytest.approx(astuple(COSTS))


def test_nothing_costs_less_than_nothing() -> None:
    """Those with more frames took less: frames cost nothing then, and the rest is explained without them."""
    found = costs_of([observed(counts, 0.1 + 0.001 * counts.actions - 0.001 * counts.frames) for counts in many()])
    assert min(astuple(found)) >= 0.0
    assert found.frames == 0.0
    assert found.actions > 0.0


def test_too_few_observations_say_nothing() -> None:
    with pytest.raises(ValueError, match="5 observations"):
        costs_of([observed(counts) for counts in many()[:5]])


def document() -> dict[str, Any]:
    """Two stages, of which the second has two replicas: one run."""
    instance = make_instance((1.0,) * 4, (1.0, 1.0, 1.0), mini_batch=16)
    plan = make_plan(instance, "asteroid")
    devices = {
        name: {"cpu_seconds": 1.0, "model_cpu_seconds": 0.9, "sent_bytes": 2e6, "received_bytes": 1e6}
        for name in plan.devices
    }
    return {
        "cell": CELL,
        "profilings": [{"instance": instance_to_json(instance)}],
        "plans": {"edgeswarm": plan.to_json()},
        "runs": [
            {"method": "edgeswarm", "round_seconds": [3.0, 4.0, 5.0], "devices": devices},
            {"method": "edgeswarm, again", "problem": "a device vanished"},
            {"method": "DDP", "round_seconds": [9.0], "devices": {"a": {"cpu_seconds": 1.0}}},
        ],
    }


def test_a_runs_counts_are_those_of_its_plan() -> None:
    told = document()
    found = observations(told)
    plan = make_plan(make_instance((1.0,) * 4, (1.0, 1.0, 1.0), mini_batch=16), "asteroid")
    assert [each.device for each in found] == list(plan.devices)
    for each in found:
        stage = plan.stages[plan.stage_of(each.device)]
        assert each.outside_seconds == pytest.approx(0.1)
        assert each.counts.seconds == 4.0
        assert each.counts.actions == 2 * plan.micro_batches
        assert each.counts.megabytes == pytest.approx(3.0)
        assert (each.counts.pieces > 0) == stage.replicated
        assert (each.counts.frames > 0) == (len(plan.stages) > 1)


def test_a_table_without_enough_runs_is_empty() -> None:
    assert report_of([document()]).rows == []
