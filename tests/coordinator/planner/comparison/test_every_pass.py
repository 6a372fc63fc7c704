"""Plans in passes for the exhaustive search: floors that no round beats, and nothing left out that would be faster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.chunk_owners import with_owners
from edgeswarm_coordinator.planner.comparison.every_pass import EveryPass
from edgeswarm_coordinator.planner.comparison.exhaustive import compositions, every_micro_batch, find_optimum
from edgeswarm_coordinator.planner.comparison.round_floor import RoundFloor
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ..instances import instances, make_instance, whole_instances


def fits(instance: PlanningInstance, plan: Plan) -> bool:
    budgets = {device.name: device.memory_bytes for device in instance.devices}
    return all(used <= budgets[name] for name, used in plan_memory_bytes(instance, plan).items())


def every_plan(instance: PlanningInstance) -> Iterator[Plan]:
    """All shares and all passes of all groups, whatever they take, that memory holds."""
    mini_batch = instance.training.mini_batch
    for count in range(1, len(instance.devices) + 1):
        for names in itertools.combinations(instance.device_names, count):
            for shares in compositions(mini_batch, count):
                for passes in itertools.product(*(range(1, share + 1) for share in shares)):
                    by_name = dict(zip(names, shares, strict=True))
                    stage = Stage(
                        0, instance.model.layer_count, by_name, 1, passes=dict(zip(names, passes, strict=True))
                    )
                    plan = with_owners(instance, Plan("by hand", mini_batch, 1, (stage,)))
                    if fits(instance, plan):
                        yield plan


def check_that_no_plan_in_passes_is_faster_than_the_optimum(instance: PlanningInstance) -> None:
    fastest = min((round_seconds(instance, plan) for plan in every_plan(instance)), default=math.inf)
    found = EveryPass(instance, RoundFloor(instance)).plans(below=math.inf)
    of_found = min((round_seconds(instance, plan) for _, plan in found if fits(instance, plan)), default=math.inf)
    assert of_found == pytest.approx(fastest, rel=1e-9)
    optimum = find_optimum(instance, every_micro_batch(instance))
    assert optimum.seconds <= fastest * (1 + 1e-5)


@settings(deadline=None, max_examples=8)
@given(instance=instances(most_layers=3, most_devices=2))
def test_no_plan_in_passes_is_faster_than_the_optimum(instance: PlanningInstance) -> None:
    check_that_no_plan_in_passes_is_faster_than_the_optimum(instance)


@pytest.mark.thorough
@settings(deadline=None, max_examples=25)
@given(instance=instances(most_layers=3, most_devices=2))
def test_of_more_instances_no_plan_in_passes_is_faster_than_the_optimum(instance: PlanningInstance) -> None:
    check_that_no_plan_in_passes_is_faster_than_the_optimum(instance)


@settings(deadline=None, max_examples=25)
@given(instance=whole_instances())
def test_no_round_beats_its_floor(instance: PlanningInstance) -> None:
    found = EveryPass(instance, RoundFloor(instance)).plans(below=math.inf)
    assert [floor for floor, _ in found] == sorted(floor for floor, _ in found)
    for floor, plan in found[:: max(1, len(found) // 50)]:
        assert round_seconds(instance, plan) >= floor


def test_only_what_may_be_faster_is_listed() -> None:
    """Two equal devices of 12 s a sample: 4 samples each take 48 s, and passes bring nothing."""
    instance = make_instance(slower=(1.0, 1.0), mini_batch=8)
    every_pass = EveryPass(instance, RoundFloor(instance))
    listed = every_pass.plans(below=48.1)
    assert {tuple(plan.stages[0].shares.values()) for _, plan in listed} == {(4, 4)}
    assert every_pass.plans(below=47.9) == []
