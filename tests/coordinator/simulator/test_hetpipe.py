"""HetPipe as a baseline: workers, their parts, and what keeping pipelines full and pushing gradients takes."""

from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.simulator.hetpipe import best_hetpipe, dealt_out, simulate_hetpipe
from edgeswarm_coordinator.simulator.simulate import round_seconds

from ..planner import instances
from .plans import make_instance


def pipeline(instance: PlanningInstance) -> Plan:
    return make_plan(instance, "pipeline", 1)


def test_two_workers_of_one_device_each_need_only_their_halves_and_the_server() -> None:
    """4 samples of 3 s each: 6 s a worker. 40 bytes of gradients, half of them to the other, and back: 2 + 2 s."""
    instance = make_instance([(1.0, 2.0)], devices=2, bandwidth=10.0, gradient_bytes=40)
    found = simulate_hetpipe(instance, [["a"], ["b"]], pipeline)
    assert [plan.mini_batch for plan in found.workers] == [2, 2]
    assert found.wave_seconds == pytest.approx(6.0)
    assert found.sync_seconds == pytest.approx(4.0)
    assert found.round_seconds == pytest.approx(6.0)


def test_an_epochs_smaller_last_round_is_no_matter_of_the_workers() -> None:
    instance = make_instance([(1.0, 2.0)], devices=2, bandwidth=10.0, gradient_bytes=40)
    found = simulate_hetpipe(instances.with_rest(instance, 3), [["a"], ["b"]], pipeline)
    assert found == simulate_hetpipe(instance, [["a"], ["b"]], pipeline)


def test_a_full_pipeline_has_no_bubble() -> None:
    """Two equal stages: 4 micro-batches of 3 s, where a round from an empty pipeline takes 15."""
    instance = make_instance([(1.0, 2.0)] * 2, devices=2)
    found = simulate_hetpipe(instance, [["a", "b"]], pipeline)
    assert len(found.workers[0].stages) == 2
    assert found.round_seconds == pytest.approx(12.0)
    assert round_seconds(instance, found.workers[0]) == pytest.approx(15.0)
    assert found.sync_seconds == 0.0


def test_slow_links_make_the_server_the_limit() -> None:
    instance = make_instance([(1.0, 2.0)] * 2, devices=4, mini_batch=8, bandwidth=10.0, gradient_bytes=1000)
    assert len(best_hetpipe(instance, pipeline).workers) == 1
    fast = make_instance([(1.0, 2.0)] * 2, devices=4, mini_batch=8, bandwidth=1e9, gradient_bytes=1000)
    assert len(best_hetpipe(fast, pipeline).workers) > 1


def test_devices_are_dealt_out_by_speed() -> None:
    instance = instances.make_instance(slower=(1.0, 4.0, 2.0, 3.0))
    assert dealt_out(instance, 2) == [["a", "b"], ["c", "d"]]
    assert dealt_out(instance, 1) == [["a", "c", "d", "b"]]


def test_what_fits_nowhere_is_said() -> None:
    instance = instances.make_instance(memory_bytes=(1, 1))
    with pytest.raises(EdgeswarmError) as caught:
        best_hetpipe(instance, pipeline)
    assert caught.value.code is ErrorCode.NO_PLAN_FITS
