"""Shares of a group: as fast as any sharing, and within memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.profile import DataSource, PlanningInstance
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.sample_shares import SampleSharing

from ..instances import instances, make_instance


def slowest(problem: SearchProblem, devices: tuple[int, ...], shares: tuple[int, ...]) -> float:
    """Seconds of the slowest replica that computes all layers."""
    return max(
        problem.profiles[problem.class_of[device]].forward(share, 0, problem.layer_count)
        + problem.profiles[problem.class_of[device]].backward(share, 0, problem.layer_count)
        for device, share in zip(devices, shares, strict=True)
    )


def test_samples_are_shared_by_speed() -> None:
    problem = SearchProblem(make_instance(slower=(1.0, 2.0, 4.0)))
    stage = SampleSharing(problem).stage(0, 4, (0, 1, 2), 14, 1)
    assert stage is not None
    assert stage.shares == (8, 4, 2)


def test_a_device_that_would_only_be_slower_gets_none() -> None:
    problem = SearchProblem(make_instance(slower=(1.0, 1000.0)))
    stage = SampleSharing(problem).stage(0, 4, (0, 1), 4, 1)
    assert stage is not None
    assert stage.devices == (0,)


def test_who_is_served_slowly_gets_fewer_where_samples_come_in() -> None:
    """A sample takes either of them 12 seconds; the data source takes 24 to serve one to a, on its own machine."""
    source = DataSource((1.0, 1000.0), 1000.0, input_bytes=24, on_its_machine=(True, False))
    problem = SearchProblem(replace(make_instance(slower=(1.0, 1.0)), data_source=source))
    a, b = map(problem.instance.device_names.index, ("a", "b"))
    sharing = SampleSharing(problem)
    first, last = sharing.stage(0, 4, (a, b), 9, 1), sharing.stage(2, 4, (a, b), 8, 1)
    assert first is not None
    assert last is not None
    assert first.shares == (3, 6)
    assert last.shares == (4, 4)


def test_fewer_are_held_where_memory_is_short() -> None:
    # 4 layers of 100 bytes of parameters, thrice; 4 x 50 bytes for each sample.
    problem = SearchProblem(make_instance(slower=(1.0,), memory_bytes=[1200 + 2 * 200]))
    sharing = SampleSharing(problem)
    stage = sharing.stage(0, 4, (0,), 1, 5)
    assert stage is not None
    assert stage.in_flight == 2
    assert sharing.stage(0, 4, (0,), 3, 5) is None


def test_a_least_batch_that_is_met_anyway_changes_nothing() -> None:
    shares = []
    for least_batch in (1, 2):
        problem = SearchProblem(make_instance(slower=(1.0, 1.9, 4.1), least_batch=least_batch))
        stage = SampleSharing(problem).stage(0, 4, (0, 1, 2), 16, 1)
        assert stage is not None
        shares.append(stage.shares)
    assert shares[0] == shares[1]
    # One device alone has all of them, as long as that is enough.
    problem = SearchProblem(make_instance(slower=(1.0,), least_batch=3))
    assert SampleSharing(problem).stage(0, 4, (0,), 2, 1) is None


def test_the_least_batch_is_respected() -> None:
    problem = SearchProblem(make_instance(slower=(1.0, 5.0), least_batch=3))
    stage = SampleSharing(problem).stage(0, 4, (0, 1), 8, 1)
    assert stage is not None
    assert sum(stage.shares) == 8
    assert min(stage.shares) >= 3


@given(instance=instances(), micro_batch=st.integers(1, 4))
def test_no_sharing_is_faster(instance: PlanningInstance, micro_batch: int) -> None:
    problem = SearchProblem(instance)
    devices = tuple(range(problem.device_count))
    layers = problem.layer_count
    largest = [problem.largest_share(device, (0, layers), in_flight=1, micro_batch=micro_batch) for device in devices]
    every = [
        shares
        for shares in itertools.product(*(range(min(most, micro_batch) + 1) for most in largest))
        if sum(shares) == micro_batch
    ]
    stage = SampleSharing(problem).stage(0, layers, devices, micro_batch, 1)
    if stage is None:
        assert not every
        return
    assert sum(stage.shares) == micro_batch
    assert all(share <= largest[device] for device, share in zip(stage.devices, stage.shares, strict=True))
    best = min(slowest(problem, devices, shares) for shares in every)
    assert slowest(problem, stage.devices, stage.shares) <= best * (1 + 1e-9)
