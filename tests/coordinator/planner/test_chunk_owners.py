"""Who adds up gradients: everybody where links are slow, fast devices where frames cost more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import Overheads
from edgeswarm_coordinator.planner.chunk_owners import Replica, choose_owners, with_owners
from edgeswarm_coordinator.simulator.simulate import round_seconds

from .instances import make_instance

MEBIBYTE = 1 << 20
FAST = Overheads(frame_seconds=0.0005, byte_seconds=1e-9)
SLOW = Overheads(frame_seconds=0.005, byte_seconds=1e-8)


def equal_links(overheads: Overheads, bandwidth: float) -> Replica:
    return Replica(overheads, link=bandwidth, card=bandwidth)


def test_on_slow_links_all_own_chunks_and_the_fastest_goes_first() -> None:
    replicas = [equal_links(overheads, 1e6) for overheads in (SLOW, FAST, SLOW, FAST)]
    assert choose_owners(replicas, 10 * MEBIBYTE) == (1, 3, 0, 2)


def test_on_fast_links_the_fast_devices_own_them() -> None:
    replicas = [equal_links(overheads, 12.5e6) for overheads in (SLOW, FAST, SLOW, FAST)]
    assert choose_owners(replicas, 10 * MEBIBYTE) == (1, 3)


def test_who_has_a_slow_link_owns_nothing() -> None:
    replicas = [equal_links(FAST, rate) for rate in (1e6, 5e6, 5e6, 5e6)]
    assert 0 not in choose_owners(replicas, 10 * MEBIBYTE)


@given(st.integers(1, 9), st.floats(1e6, 1e9), st.integers(0, 50 * MEBIBYTE))
def test_of_equal_devices_all_or_the_first_ones(size: int, bandwidth: float, gradient_bytes: int) -> None:
    owners = choose_owners([equal_links(SLOW, bandwidth)] * size, gradient_bytes)
    assert owners == tuple(range(len(owners)))
    assert 1 <= len(owners) <= size


@pytest.mark.parametrize("bandwidth", [12.5e6, 125e6, 1.25e9])
def test_the_simulator_finds_no_owners_much_better(bandwidth: float) -> None:
    """Of all the first so many in the order of speed."""
    plain = make_instance(
        (0.01, 0.02), (1.0, 1.0, 9.0, 9.0), param_bytes=4 * MEBIBYTE, bandwidth=bandwidth, mini_batch=8
    )
    profiles = {
        device.profile: replace(plain.profile_of(device.name), overheads=overheads)
        for device, overheads in zip(plain.devices, (FAST, FAST, SLOW, SLOW), strict=True)
    }
    instance = replace(plain, profiles=profiles)
    names = instance.device_names
    plan = Plan("by hand", 8, 1, (Stage(0, instance.model.layer_count, dict.fromkeys(names, 2), 1),))
    chosen = round_seconds(instance, with_owners(instance, plan))
    others = [replace(plan, stages=(replace(plan.stages[0], owners=names[:count]),)) for count in range(1, 5)]
    assert chosen <= 1.1 * min(round_seconds(instance, other) for other in others)
