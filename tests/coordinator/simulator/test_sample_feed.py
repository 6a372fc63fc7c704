"""What a data source sends: how fast rounds can be by it, and what it has to send at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.profile import DataSource
from edgeswarm_coordinator.simulator.simulate import round_seconds, simulate

from .plans import make_instance, make_plan


def test_samples_come_from_the_data_source_ahead_of_need() -> None:
    """A source with twice the speed that is needed costs nothing; one with half of it sets the pace."""
    plan = make_plan((1, {"a": 1}, 1), micro_batches=8)

    def seconds(source_bandwidth: float) -> float:
        source = DataSource((source_bandwidth,), source_bandwidth)
        instance = make_instance([(0.5, 0.5)], mini_batch=8, input_bytes=100, data_source=source)
        return round_seconds(instance, plan)

    assert seconds(200.0) == pytest.approx(8.0)
    assert seconds(50.0) == pytest.approx(16.0)
    # Ten percent slower than the device computes: what was fetched ahead isn't used up in the rounds that are simulated.
    source = DataSource((1000 / 11,), 1000 / 11)
    slightly = simulate(make_instance([(0.5, 0.5)], mini_batch=8, input_bytes=100, data_source=source), plan)
    assert slightly.round_seconds == pytest.approx(8.8)
    assert slightly.devices["a"].busy == pytest.approx(8 / 8.8)
    told = {limit.text: limit.seconds for limit in slightly.limits}
    assert told == {
        "computing in stage 0": pytest.approx(8.0),
        "the samples from the data source to stage 0": pytest.approx(0.8),
    }


def test_a_stage_that_is_first_and_last_gets_what_it_takes_once() -> None:
    """A transform takes whole items, of 100 bytes, wherever it runs: twice where both ends of a pipeline have it."""
    source = DataSource((10.0,) * 2, 10.0, label_bytes=100, joint_bytes=100)
    instance = make_instance([(0.5, 0.5)] * 2, devices=2, mini_batch=8, input_bytes=100, data_source=source)
    alone, both = (
        make_plan((2, {"a": 1}, 1), micro_batches=8),
        make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=8),
    )
    assert round_seconds(instance, alone) == pytest.approx(80.0)
    assert round_seconds(instance, both) == pytest.approx(160.0)


def test_in_later_epochs_a_replica_lacks_what_others_have_had() -> None:
    """Half of the samples each: in the second epoch a replica has half of its samples, in the third three quarters."""
    source = DataSource((1000.0,) * 2, 10.0, epochs=3)
    instance = make_instance([(0.5, 0.5)], devices=2, mini_batch=8, input_bytes=100, data_source=source)
    both, alone = make_plan((1, {"a": 1, "b": 1}, 1), micro_batches=4), make_plan((1, {"a": 1}, 1), micro_batches=8)
    assert round_seconds(instance, both) == pytest.approx(80.0 * (1 + 1 / 2 + 1 / 4) / 3)
    assert round_seconds(instance, alone) == pytest.approx(80.0 / 3)


def test_what_a_device_on_the_sources_machine_gets_does_not_go_over_its_card() -> None:
    """Two replicas with four samples of 100 bytes each: over a card of 50 bytes a second 16 s for both, 8 for one."""
    plan = make_plan((1, {"a": 1, "b": 1}, 1), micro_batches=4)
    source = DataSource((1000.0, 1000.0), 50.0)

    def seconds(*on_its_machine: bool) -> float:
        instance = make_instance(
            [(0.5, 0.5)],
            devices=2,
            mini_batch=8,
            input_bytes=100,
            data_source=replace(source, on_its_machine=on_its_machine),
        )
        return round_seconds(instance, plan)

    assert seconds(False, False) == pytest.approx(16.0)
    assert seconds(False, True) == pytest.approx(8.0)
    assert seconds(True, True) == pytest.approx(4.0)


def test_samples_and_what_an_agent_beside_the_source_sends_share_a_card() -> None:
    """800 bytes of samples for b, and 800 of gradients from a: 16 s each over a card of 50 bytes a second."""
    instance = make_instance([(0.1, 0.1)] * 2, devices=2, mini_batch=8, input_bytes=100, cut_bytes=100, bandwidth=50.0)
    source = DataSource((50.0, 1000.0), 50.0)
    plan = make_plan((1, {"b": 1}, 3), (1, {"a": 1}, 1), micro_batches=8)

    def seconds(*on_its_machine: bool) -> float:
        there = replace(source, on_its_machine=on_its_machine)
        return round_seconds(replace(instance, data_source=there), plan)

    assert seconds(False, False) < 24.0
    assert 32.0 <= seconds(True, False) < 40.0
    assert seconds(True, True) < 24.0


def test_labels_go_to_the_last_stage() -> None:
    source = DataSource((1e9, 10.0), 1e9, label_bytes=30)
    instance = make_instance([(0.5, 0.5)] * 2, devices=2, mini_batch=8, data_source=source)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=8)
    result = simulate(instance, plan)
    assert result.round_seconds == pytest.approx(24.0)
    assert result.limits[0].text == "the samples from the data source to stage 1"
