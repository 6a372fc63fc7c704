"""What the simulator takes for granted of a worker. The two packages don't import each other; here both are seen."""

from __future__ import annotations

from edgeswarm_agent.worker import gradients
from edgeswarm_coordinator.simulator import all_reduce


def test_gradients_are_reduced_as_the_worker_does_it() -> None:
    assert all_reduce.REDUCED_AT_ONCE == gradients.REDUCED_AT_ONCE
