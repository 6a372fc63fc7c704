"""Profiles: tables of their curves, and the sums over layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts, TiedCosts
from edgeswarm.profile import DataSource, DeviceDescription, DeviceProfile, Network, PlanningInstance, TrainingSettings


def one_layer(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> DeviceProfile:
    rows = tuple((value,) for value in seconds)
    return DeviceProfile(sizes, rows, rows)


def test_the_table_says_what_is_said_of_each_batch_size() -> None:
    """A cliff at 16, several layers, and sizes before, between and beyond those that were measured."""
    profile = DeviceProfile((2, 8, 16), ((1.0, 1.0), (2.0, 2.0), (0.5, 3.0)), ((4.0, 2.0), (4.4, 2.1), (4.0, 2.0)))
    forward, backward = profile.seconds_table(20)
    assert forward.shape == backward.shape == (21, 3)
    for batch in range(21):
        before = profile.seconds_before(batch)
        assert np.array_equal(forward[batch], before[0])
        assert np.array_equal(backward[batch], before[1])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6), st.integers(0, 20), st.data())
def test_a_stage_is_the_sum_of_its_layers(seconds: list[float], batch: int, data: st.DataObject) -> None:
    profile = DeviceProfile(
        (1, 8), (tuple(seconds), tuple(value * 3 for value in seconds)), ((1.0,) * len(seconds),) * 2
    )
    first = data.draw(st.integers(0, len(seconds)))
    end = data.draw(st.integers(first, len(seconds)))
    alone = sum(profile.forward(batch, layer, layer + 1) for layer in range(first, end))
    assert profile.forward(batch, first, end) == pytest.approx(alone, abs=1e-9)


def instance() -> PlanningInstance:
    profile = DeviceProfile((1, 4), ((0.1, 0.2), (0.3, 0.4)), ((0.2, 0.4), (0.6, 0.8)))
    return PlanningInstance(
        model=ModelCosts(12, (LayerCosts("one", 8, 4, 16, 100.0, 200.0), LayerCosts("two", 8, 4, 16, least_batch=2))),
        profiles={"box": profile},
        devices=(DeviceDescription("x", "box", 1000, base_bytes=10), DeviceDescription("y", "box", 2000)),
        network=Network(0.001, ((0.0, 5.0), (7.0, 0.0))),
        training=TrainingSettings(8, 2.0),
        name="small",
    )


def test_the_slowest_of_some_directions() -> None:
    network = instance().network
    assert network.slowest([(0, 1)]) == 5.0
    assert network.slowest([(1, 0)]) == 7.0
    assert network.slowest([]) == float("inf")


def test_only_some_devices() -> None:
    turned = instance().only(["y", "x"])
    assert turned.device_names == ("y", "x")
    assert turned.network.slowest([(0, 1)]) == 7.0
    assert instance().only(["y"]).device_names == ("y",)
    source = DataSource((5.0, 6.0), egress=7.0, on_its_machine=(False, True))
    assert replace(instance(), data_source=source).only(["y"]).data_source == DataSource(
        (6.0,), egress=7.0, on_its_machine=(True,)
    )
    with pytest.raises(ValueError, match="bandwidth is for 2 devices, its on_its_machine for 1"):
        replace(source, on_its_machine=(True,))


def test_what_a_replica_fetches_in_the_mean_of_all_epochs() -> None:
    source = DataSource((5.0,), egress=7.0, epochs=3)
    assert source.fetched(1.0) == pytest.approx(1 / 3)
    assert source.fetched(1 / 3) == pytest.approx((1 + 2 / 3 + 4 / 9) / 3)
    assert [replace(source, epochs=1).fetched(part) for part in (0.0, 0.1, 1.0)] == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="epochs are below 1"):
        replace(source, epochs=0)


def test_what_a_stage_gets_of_a_sample_from_the_source() -> None:
    plain = instance()
    source = DataSource((5.0, 6.0), egress=7.0, label_bytes=8)
    apart = replace(plain, data_source=source)
    ends = [(True, False), (False, True), (False, False), (True, True)]

    def bytes_of(some: PlanningInstance) -> list[int]:
        return [some.served_bytes(is_first=is_first, is_last=is_last) for is_first, is_last in ends]

    inputs = plain.model.input_bytes
    assert bytes_of(apart) == [inputs, 8, 0, inputs + 8]
    assert bytes_of(replace(plain, data_source=replace(source, input_bytes=30, joint_bytes=31))) == [30, 8, 0, 31]
    assert bytes_of(plain) == [0, 0, 0, 0]


def test_each_pair_may_have_a_latency_of_its_own() -> None:
    radio = Network.of_pairs(((9.0, 0.1, 0.5), (0.2, 9.0, 0.6), (0.7, 0.8, 9.0)), ((1.0,) * 3,) * 3)
    assert radio.usual_latency_seconds == pytest.approx((0.1 + 0.2) / 2)
    far = Network.of_pairs(((0.0, 0.125, 9.0), (0.125, 0.0, 9.0), (9.0, 9.0, 0.0)), ((1.0,) * 3,) * 3)
    assert far.usual_latency_seconds == 0.125
    assert Network.uniform(3, bytes_per_second=1.0, latency_seconds=0.3).usual_latency_seconds == 0.3
    assert (radio.latency_seconds, radio.least_latency_seconds) == (0.8, 0.1)
    assert (radio.latency(0, 2), radio.latency(2, 0)) == (0.5, 0.7)
    assert (radio.most_latency([0, 1]), radio.most_latency([2, 0]), radio.most_latency([1])) == (0.2, 0.7, 0.0)
    wired = radio.only([1, 0])
    assert (wired.latency_seconds, wired.latency(0, 1)) == (0.2, 0.2)
    assert instance().network.only([1, 0]).latency(0, 1) == instance().network.most_latency([0, 1]) == 0.001
    with pytest.raises(ValueError, match="latency is below 0"):
        Network.of_pairs(((0.0, -0.1), (0.1, 0.0)), ((1.0,) * 2,) * 2)
    with pytest.raises(ValueError, match="latencies is not as large"):
        Network.of_pairs(((0.0,),), ((1.0,) * 2,) * 2)


def test_what_is_frozen_has_neither_gradient_nor_optimizer_state() -> None:
    whole = instance()
    first, second = whole.model.layers
    partly = replace(whole.model, layers=(replace(first, trained_bytes=0), replace(second, kernel_bytes=5)))
    training = replace(whole.training, optimizer_state_bytes_per_parameter_byte=2.0)
    frozen = replace(whole, model=partly, training=training)
    assert frozen.resident_bytes_before.tolist() == [0, 8, 8 + 4 * 8 + 5]


def test_a_tied_parameter_is_in_memory_once() -> None:
    whole = replace(instance(), training=replace(instance().training, optimizer_state_bytes_per_parameter_byte=1.0))
    tied = replace(whole, model=replace(whole.model, tied=(TiedCosts((0, 1), 6, 3),)))
    assert whole.resident_bytes(0, 2) == 2 * 8 * 3
    assert tied.resident_bytes(0, 2) == 2 * 8 * 3 - 6 * 3
    assert tied.resident_bytes(0, 1) == tied.resident_bytes(1, 2) == 8 * 3
    frozen = replace(whole, model=replace(whole.model, tied=(TiedCosts((0, 1), 6, 0),)))
    assert frozen.resident_bytes(0, 2) == 2 * 8 * 3 - 6


def test_the_step_of_a_stage_is_the_sum_of_its_layers() -> None:
    assert DeviceProfile((1,), ((1.0, 1.0),), ((1.0, 1.0),), update_seconds=(2.0, 3.0)).update(1, 2) == 3.0
    assert one_layer((1,), (1.0,)).update(0, 1) == 0.0
