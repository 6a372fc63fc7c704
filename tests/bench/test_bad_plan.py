"""A plan that nobody should want."""

from __future__ import annotations

from bench.bad_plan import even_cuts
from tests.coordinator.planner.instances import make_instance


def test_the_slowest_device_comes_first() -> None:
    plan = even_cuts(make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1))
    assert plan is not None
    assert plan.devices == ("b", "a")


def test_one_that_does_not_fit_is_none() -> None:
    assert even_cuts(make_instance(memory_bytes=[500, 500])) is None
