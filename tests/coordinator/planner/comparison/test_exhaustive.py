"""The exhaustive optimum: its floors never exceed a simulated round, and pruning loses nothing that enumeration finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.random_instances import random_instance
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.comparison.arrangements import arrangements, like_devices
from edgeswarm_coordinator.planner.comparison.exhaustive import (
    boxes_below,
    compositions,
    every_micro_batch,
    exhaustive,
    find_optimum,
)
from edgeswarm_coordinator.planner.comparison.round_floor import Grid, RoundFloor
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.micro_batches import micro_batch_sizes
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ..instances import make_instance


def grid_of_one(instance: PlanningInstance, plan: Plan) -> Grid:
    groups = tuple(tuple(instance.index_of[name] for name in stage.devices) for stage in plan.stages)
    cuts = np.array([[0, *(stage.end_layer for stage in plan.stages)]])
    shares = tuple(np.array([list(stage.shares.values())]) for stage in plan.stages)
    return Grid(groups, plan.micro_batch, cuts, shares)


def all_plans(instance: PlanningInstance, micro_batch: int) -> Iterator[Plan]:
    """Without any reduction: all orders of all groups, all shares, and K from 1 to all micro-batches."""
    mini_batch, layers = instance.training.mini_batch, instance.model.layer_count
    rounds = -(-mini_batch // micro_batch)
    for groups in arrangements(instance, reduced=False):
        if max(map(len, groups)) > micro_batch:
            continue
        count = len(groups)
        limits = [range(1, rounds + 1)] * count
        for inner in itertools.combinations(range(1, layers), count - 1):
            edges = (0, *inner, layers)
            for shares in itertools.product(*(list(compositions(micro_batch, len(group))) for group in groups)):
                for in_flight in itertools.product(*limits):
                    yield Plan(
                        planner="by hand",
                        micro_batch=micro_batch,
                        micro_batches=rounds,
                        last_micro_batch=mini_batch % micro_batch or None,
                        stages=tuple(
                            Stage(
                                edges[index],
                                edges[index + 1],
                                {
                                    instance.device_names[p]: n
                                    for p, n in zip(groups[index], shares[index], strict=True)
                                },
                                in_flight[index],
                            )
                            for index in range(count)
                        ),
                    )


def with_links(instance: PlanningInstance, factor: float) -> PlanningInstance:
    """All of them, the data source's too, are that much faster."""
    rows = tuple(tuple(value * factor for value in row) for row in instance.network.bandwidth)
    source = instance.data_source
    if source is not None:
        rates = tuple(value * factor for value in source.bandwidth)
        source = replace(source, bandwidth=rates, egress=source.egress * factor)
    return replace(instance, network=replace(instance.network, bandwidth=rows), data_source=source)


def fits(instance: PlanningInstance, plan: Plan) -> bool:
    held = plan_memory_bytes(instance, plan)
    return all(size <= instance.devices[instance.index_of[name]].memory_bytes for name, size in held.items())


@settings(max_examples=80, deadline=None)
@given(number=st.integers(0, 10**6), data=st.data())
def test_no_simulated_round_is_below_its_floor(number: int, data: st.DataObject) -> None:
    instance = random_instance(1, number)
    least = data.draw(st.sampled_from([1, 1, 2]), label="least batch of the last layer")
    layers = (*instance.model.layers[:-1], replace(instance.model.layers[-1], least_batch=least))
    instance = replace(instance, model=replace(instance.model, layers=layers))
    if instance.data_source is not None:
        served = data.draw(st.sampled_from([None, 0, instance.model.input_bytes // 4]), label="served bytes")
        there = data.draw(st.tuples(*(st.booleans() for _ in instance.devices)), label="on the source's machine")
        source = replace(instance.data_source, input_bytes=served, on_its_machine=there)
        instance = replace(instance, data_source=source)
    micro_batch = data.draw(st.integers(1, instance.training.mini_batch))
    groups = data.draw(
        st.sampled_from([a for a in arrangements(instance) if max(map(len, a)) <= micro_batch]), label="groups"
    )
    count = instance.model.layer_count
    inner = data.draw(st.sampled_from(list(itertools.combinations(range(1, count), len(groups) - 1))), label="cuts")
    edges = (0, *inner, count)
    rounds = -(-instance.training.mini_batch // micro_batch)
    stages: list[Stage] = []
    for index, group in enumerate(groups):
        shares = data.draw(st.sampled_from(list(compositions(micro_batch, len(group)))), label="shares")
        names = {instance.device_names[place]: share for place, share in zip(group, shares, strict=True)}
        most = stages[-1].in_flight if stages else rounds
        stages.append(Stage(edges[index], edges[index + 1], names, data.draw(st.integers(1, most), label="in_flight")))
    plan = Plan("by hand", micro_batch, rounds, tuple(stages), instance.training.mini_batch % micro_batch or None)
    rest = instance.training.mini_batch % micro_batch
    assume(not 0 < rest < least and not plan.too_few_samples(plan.mini_batch, [layer.least_batch for layer in layers]))
    grid = grid_of_one(instance, plan)
    floor = RoundFloor(instance)
    seconds = round_seconds(instance, plan)
    assert floor.floors(grid).item() <= seconds
    by_stage = floor.in_flight_floors(grid, range(1, rounds + 1))
    assert all(by_stage[index][stage.in_flight] <= seconds for index, stage in enumerate(stages))
    assert RoundFloor(with_links(instance, 2.0)).floors(grid).item() <= floor.floors(grid).item() * (1 + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(8))
def test_pruning_finds_what_plain_enumeration_finds(number: int) -> None:
    instance = random_instance(2, number, most_layers=3, most_devices=3, most_mini_batch=4)
    if number % 2:  # links and an all-reduce that memory has to hold, samples smaller than the model's input
        least = min(device.memory_bytes for device in instance.devices)
        training = replace(instance.training, reduce_bytes=least // 5, peer_bytes=least // 5)
        source = instance.data_source and replace(instance.data_source, input_bytes=instance.model.input_bytes // 4)
        instance = replace(instance, training=training, data_source=source)
    sizes = every_micro_batch(instance)
    plain = min(
        (round_seconds(instance, plan) for size in sizes for plan in all_plans(instance, size) if fits(instance, plan)),
        default=np.inf,
    )
    optimum = find_optimum(instance, sizes)
    assert optimum.seconds == pytest.approx(plain, rel=2e-6)
    if optimum.plan is not None:
        assert fits(instance, optimum.plan)
        assert round_seconds(instance, optimum.plan) == optimum.seconds


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(10))
def test_neither_more_bandwidth_nor_more_memory_makes_the_optimum_slower(number: int) -> None:
    instance = random_instance(4, number, most_layers=4, most_devices=3, most_mini_batch=8)
    sizes = every_micro_batch(instance)
    before = find_optimum(instance, sizes).seconds
    assert find_optimum(with_links(instance, 2.0), sizes).seconds <= before * (1 + 1e-6)
    devices = tuple(replace(device, memory_bytes=2 * device.memory_bytes) for device in instance.devices)
    assert find_optimum(replace(instance, devices=devices), sizes).seconds <= before * (1 + 1e-6)


def test_devices_left_idle_and_an_order_that_memory_does_not_give() -> None:
    """The one with the most memory is slow, and links are such that a third device only costs."""
    instance = make_instance((1.0, 1.0), (9.0, 1.0, 1.0), output_bytes=1000, param_bytes=10**6, bandwidth=100.0)
    plan = exhaustive(instance, micro_batch_sizes(16))
    assert plan is not None
    assert plan.devices == ("b",)
    assert [idle.name for idle in plan.idle] == ["a", "c"]


def test_like_devices_are_told_apart_once() -> None:
    instance = make_instance((1.0,) * 3, (1.0, 1.0, 1.0), [10**9] * 3)
    same = instance.devices[0].profile
    like = [type(device)(device.name, same, device.memory_bytes) for device in instance.devices]
    instance = PlanningInstance(
        instance.model, {same: instance.profiles[same]}, tuple(like), instance.network, instance.training
    )
    assert like_devices(instance) == (0, 0, 0)
    # One device, two in a row, two as a group, then three in a row, 1 + 2, 2 + 1, and all in one group.
    assert sorted(map(str, arrangements(instance))) == sorted(
        map(str, [((0,),), ((0,), (1,)), ((0, 1),), ((0,), (1,), (2,)), ((0,), (1, 2)), ((0, 1), (2,)), ((0, 1, 2),)])
    )
    assert len(list(arrangements(instance, reduced=False))) == 3 + 6 + 6 + 6 * 4


def test_every_number_of_micro_batches_in_flight_falls_into_one_box() -> None:
    largest, smallest, used = (4, 5, 3), (1, 2, 1), (3, 1, 2)
    boxes = list(boxes_below(largest, smallest, used))
    assert boxes == [((2, 5, 3), (1, 2, 1)), ((4, 5, 1), (3, 2, 1))]

    def within(limits: tuple[int, ...], above: tuple[int, ...], below: tuple[int, ...]) -> bool:
        return all(low <= limit <= high for low, limit, high in zip(below, limits, above, strict=True))

    for limits in itertools.product(range(1, 5), range(2, 6), range(1, 4)):
        assert sum(within(limits, *box) for box in boxes) + within(limits, largest, used) == 1


def test_a_number_between_the_usual_ones_and_all_can_be_the_best() -> None:
    """Three stages, slow links, and 12 micro-batches in a round."""
    optimum = find_optimum(random_instance(1, 93), [1])
    assert optimum.plan is not None
    held = [stage.in_flight for stage in optimum.plan.stages]
    assert held == [7, 6, 1]
    assert optimum.seconds < 13.2  # 13.9 with 4 in flight in the second stage


def test_larger_instances_are_refused() -> None:
    with pytest.raises(EdgeswarmError, match="up to 8 layers, 4 devices and 64 samples"):
        exhaustive(make_instance((1.0,) * 9), [1])
