"""Equal shares under memory, rooms, GPipe's cuts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.profile import Network, PlanningInstance
from edgeswarm_coordinator.planner.comparison.equal_shares import (
    StageCut,
    average_layer_seconds,
    found_pipeline,
    most_samples_of_runs,
    share_evenly,
)
from edgeswarm_coordinator.planner.comparison.gpipe import balanced_cuts
from edgeswarm_coordinator.planner.comparison.rooms import rooms_of
from edgeswarm_coordinator.planner.cost_model import held_bytes

from ..instances import instances, make_instance


@given(samples=st.integers(1, 20), most=st.lists(st.integers(0, 12), min_size=1, max_size=4), least=st.integers(1, 3))
def test_shares_are_as_equal_as_memory_allows(samples: int, most: list[int], least: int) -> None:
    shares = share_evenly(samples, most, least=least)
    if shares is None:
        assert least > 1 or sum(most) < samples
        return
    assert sum(shares) == samples
    assert all(share <= limit and (share == 0 or share >= least) for share, limit in zip(shares, most, strict=True))
    largest = max(shares)
    if least == 1:
        # Whoever has less than the largest less one can't hold more.
        assert all(share >= largest - 1 or share == limit for share, limit in zip(shares, most, strict=True))


@given(samples=st.integers(1, 20), most=st.lists(st.integers(0, 12), min_size=1, max_size=4), least=st.integers(1, 3))
def test_there_are_shares_wherever_memory_has_room_for_some(samples: int, most: list[int], least: int) -> None:
    """Of devices in descending order of memory, as planners have them: the last ones are those that get none."""
    most.sort(reverse=True)
    sums = {0}
    for limit in most:
        sums = {before + share for before in sums for share in (0, *range(least, limit + 1))}
    assert (share_evenly(samples, most, least=least) is not None) == (samples in sums)


def test_shares_by_hand() -> None:
    assert share_evenly(8, [9, 9, 9]) == (3, 3, 2)
    assert share_evenly(8, [9, 1, 9]) == (4, 1, 3)
    assert share_evenly(8, [9, 9, 9], least=4) == (4, 4, 0)
    assert share_evenly(8, [3, 3, 1]) is None


@given(instance=instances(), in_flight=st.integers(1, 3), more=st.integers(0, 2), transient=st.sampled_from((0, 300)))
def test_samples_that_memory_holds_are_those_of_the_cost_model(
    instance: PlanningInstance, in_flight: int, more: int, transient: int
) -> None:
    layers = tuple(replace(layer, transient_bytes=transient) for layer in instance.model.layers)
    instance = replace(instance, model=replace(instance.model, layers=layers))
    micro_batches = in_flight + more
    table = most_samples_of_runs(instance, 0, in_flight=in_flight, micro_batches=micro_batches)
    budget, mini_batch = instance.devices[0].memory_bytes, instance.training.mini_batch
    for first, end in itertools.combinations(range(instance.model.layer_count + 1), 2):
        held = [
            held_bytes(
                instance,
                first_layer=first,
                end_layer=end,
                samples=samples,
                in_flight=in_flight,
                micro_batches=micro_batches,
            )
            for samples in range(mini_batch + 1)
        ]
        expected = max((samples for samples in range(mini_batch + 1) if held[samples] <= budget), default=0)
        assert table[first, end] == expected


def test_fewer_in_flight_where_memory_holds_no_more() -> None:
    """50 bytes a sample and layer: two stages of one layer, micro-batches of one, room for two in flight in the first."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0), [110, 60], param_bytes=0)
    found = found_pipeline(instance, [StageCut(0, 1, (0,)), StageCut(1, 2, (1,))], 1)
    assert found is not None
    assert [stage.in_flight for stage in found.stages] == [2, 1]
    assert found_pipeline(instance, [StageCut(0, 1, (0,)), StageCut(1, 2, (1,))], 2) is None


def test_samples_that_wait_in_the_feed_take_no_more_than_the_feed_holds() -> None:
    """Of 8 MiB each; 8 micro-batches wait, but no more than 64 MiB of them: as much for one sample as for eight."""
    plain = make_instance((1.0, 1.0), (1.0,), mini_batch=16)
    training = replace(plain.training, inputs_ahead=8)
    fed = replace(plain, model=replace(plain.model, input_bytes=8 * 2**20), training=training)
    needed = held_bytes(fed, first_layer=0, end_layer=2, samples=8, in_flight=1, micro_batches=2)
    tight = replace(fed, devices=(replace(fed.devices[0], memory_bytes=needed),))
    found = found_pipeline(tight, [StageCut(0, 2, (0,))], 8)
    assert found is not None
    assert found.stages[0].shares == (("a", 8),)
    less = replace(fed, devices=(replace(fed.devices[0], memory_bytes=needed - 1),))
    assert found_pipeline(less, [StageCut(0, 2, (0,))], 8) is None


def test_the_average_device() -> None:
    forward, backward = average_layer_seconds(make_instance((1.0, 2.0), (1.0, 3.0)), 2)
    assert forward == pytest.approx([4.0, 8.0])
    assert backward == pytest.approx([8.0, 16.0])


def test_rooms_are_devices_with_faster_links() -> None:
    instance = make_instance((1.0,), (1.0,) * 4, [4, 3, 2, 1])
    assert rooms_of(instance) == ((0, 1, 2, 3),)
    fast, slow = 100.0, 10.0
    rows = [[fast if (a < 2) == (b < 2) else slow for b in range(4)] for a in range(4)]
    rooms = replace(instance, network=Network(0.0, tuple(map(tuple, rows))))
    assert rooms_of(rooms) == ((0, 1), (2, 3))


@given(costs=st.lists(st.floats(0, 10), min_size=1, max_size=8), blocks=st.integers(1, 5))
def test_cuts_of_least_variance(costs: list[float], blocks: int) -> None:
    if blocks > len(costs):
        with pytest.raises(ValueError, match="can't be cut"):
            balanced_cuts(costs, blocks)
        return

    def variance(cuts: tuple[int, ...]) -> float:
        return float(np.var([sum(costs[a:b]) for a, b in itertools.pairwise(cuts)]))

    every = [(0, *inner, len(costs)) for inner in itertools.combinations(range(1, len(costs)), blocks - 1)]
    assert variance(balanced_cuts(costs, blocks)) == pytest.approx(min(map(variance, every)), abs=1e-9)
