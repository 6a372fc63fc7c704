"""What the simulator takes for granted of a worker. The two packages don't import each other; here both are seen."""

from __future__ import annotations

from edgeswarm_agent.worker import gradients, setup
from edgeswarm_coordinator import instance
from edgeswarm_coordinator.simulator import all_reduce, sample_feed


def test_gradients_are_reduced_as_the_worker_does_it() -> None:
    assert all_reduce.REDUCED_AT_ONCE == gradients.REDUCED_AT_ONCE


def test_samples_come_as_far_ahead_as_the_worker_asks_for_them() -> None:
    assert sample_feed.AHEAD == instance.INPUTS_AHEAD == setup.FEED_AHEAD
