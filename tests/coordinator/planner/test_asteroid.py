"""The dynamic program against brute force over the same order of devices, and what must hold of every plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.plan import Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.asteroid import FoundPipeline, memory_order, search
from edgeswarm_coordinator.planner.cost_model import held_bytes, pipeline_steps, round_seconds
from edgeswarm_coordinator.planner.stage_tables import StageTables

from .instances import instances, make_instance


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """The ways to cut 0..total into so many runs, as cut points with both ends."""
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield (0, *cuts, total)


def brute_force(instance: PlanningInstance, micro_batch: int, most_in_flight: int | None = None) -> float:
    """The best round over all cuts and groupings of the memory order, each stage shared by Algorithm 1."""
    order = memory_order(instance)
    tables = StageTables(instance, order, micro_batch=micro_batch, most_in_flight=most_in_flight)
    names = [instance.devices[place].name for place in order]
    layers = instance.model.layer_count
    best = math.inf
    for count in range(1, min(layers, len(names)) + 1):
        for layer_cuts in compositions(layers, count):
            for device_cuts in compositions(len(names), count):
                stages = []
                for index in range(count):
                    first, end = layer_cuts[index], layer_cuts[index + 1]
                    costs = tables.costs(device_cuts[index], device_cuts[index + 1], count - index)
                    if not math.isfinite(costs.seconds_of(first, end)):
                        break
                    group = names[device_cuts[index] : device_cuts[index + 1]]
                    shares = dict(zip(group, costs.shares_of(first, end), strict=True))
                    shares = {name: share for name, share in shares.items() if share}
                    stages.append(Stage(first, end, shares, tables.in_flight(count - index)))
                else:
                    best = min(best, round_seconds(pipeline_steps(instance, stages), tables.micro_batches))
    return best


def stages_of(found: FoundPipeline) -> list[Stage]:
    return [
        Stage(stage.first_layer, stage.end_layer, {name: n for name, n in stage.shares if n}, stage.in_flight)
        for stage in found.stages
    ]


def price(instance: PlanningInstance, found: FoundPipeline) -> float:
    rounds = -(-instance.training.mini_batch // found.micro_batch)
    return round_seconds(pipeline_steps(instance, stages_of(found)), rounds)


@settings(max_examples=60, deadline=None)
@given(instance=instances(), micro_batch=st.integers(1, 4))
def test_equals_brute_force_where_links_are_alike(instance: PlanningInstance, micro_batch: int) -> None:
    found = search(instance, micro_batch=micro_batch)
    best = brute_force(instance, micro_batch)
    if found is None:
        assert best == math.inf
    else:
        assert found.round_seconds == pytest.approx(best)
        assert price(instance, found) == pytest.approx(found.round_seconds)


@settings(max_examples=30, deadline=None)
@given(instance=instances(uniform_links=False), micro_batch=st.integers(1, 4))
def test_prices_links_that_differ_as_the_cost_model_does(instance: PlanningInstance, micro_batch: int) -> None:
    found = search(instance, micro_batch=micro_batch)
    best = brute_force(instance, micro_batch)
    assert (found is None) == (best == math.inf)
    if found is not None:
        assert price(instance, found) == pytest.approx(found.round_seconds)
        assert found.round_seconds >= best * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(instance=instances(most_devices=3), micro_batch=st.integers(1, 3), most=st.integers(1, 2))
def test_fewer_in_flight_is_priced_as_the_cost_model_does(
    instance: PlanningInstance, micro_batch: int, most: int
) -> None:
    found = search(instance, micro_batch=micro_batch, most_in_flight=most)
    best = brute_force(instance, micro_batch, most_in_flight=most)
    assert (found is None) == (best == math.inf)
    if found is not None:
        assert price(instance, found) == pytest.approx(found.round_seconds)
        assert all(stage.in_flight <= most for stage in found.stages)


@settings(max_examples=30, deadline=None)
@given(instance=instances(), micro_batch=st.integers(1, 4))
def test_a_limit_on_the_round_loses_nothing_better(instance: PlanningInstance, micro_batch: int) -> None:
    free = search(instance, micro_batch=micro_batch)
    if free is not None:
        limited = search(instance, micro_batch=micro_batch, slowest_round=free.round_seconds)
        assert limited is not None
        assert limited.round_seconds == pytest.approx(free.round_seconds)
        assert search(instance, micro_batch=micro_batch, slowest_round=free.round_seconds * 0.99) is None


@settings(max_examples=30, deadline=None)
@given(instance=instances(uniform_links=False), micro_batch=st.integers(1, 4))
def test_memory_holds_and_every_device_is_in_one_group(instance: PlanningInstance, micro_batch: int) -> None:
    found = search(instance, micro_batch=micro_batch)
    if found is None:
        return
    grouped = [name for stage in found.stages for name, _ in stage.shares]
    assert sorted(grouped) == sorted(instance.device_names)
    for stage in stages_of(found):
        for name, share in stage.shares.items():
            need = held_bytes(
                instance,
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                samples=share,
                in_flight=stage.in_flight,
                micro_batches=-(-instance.training.mini_batch // micro_batch),
            )
            assert need <= instance.devices[instance.index_of[name]].memory_bytes


@settings(max_examples=40, deadline=None)
@given(instance=instances(uniform_links=False), data=st.data())
def test_the_order_of_the_device_list_changes_nothing(instance: PlanningInstance, data: st.DataObject) -> None:
    shuffled = instance.only(data.draw(st.permutations(instance.device_names)))
    assert search(shuffled, micro_batch=2) == search(instance, micro_batch=2)


def test_in_flight_follows_the_paper() -> None:
    found = search(make_instance((1.0,) * 6, (1.0, 1.0, 1.0)), micro_batch=1, replicate=False)
    assert found is not None
    assert [stage.in_flight for stage in found.stages] == [5, 3, 1]
    assert [(stage.first_layer, stage.end_layer) for stage in found.stages] == [(0, 2), (2, 4), (4, 6)]


def test_without_replication_surplus_devices_stay_out() -> None:
    found = search(make_instance((1.0, 1.0), (1.0, 1.0, 1.0)), micro_batch=1, replicate=False)
    assert found is not None
    assert [stage.shares for stage in found.stages] == [(("a", 1),), (("b", 1),)]


def test_a_slow_network_is_avoided_by_one_group() -> None:
    instance = make_instance((1.0, 1.0), (1.0, 1.0), param_bytes=0, output_bytes=10**6, bandwidth=1.0)
    found = search(instance, micro_batch=2)
    assert found is not None
    assert [stage.shares for stage in found.stages] == [(("a", 1), ("b", 1))]
