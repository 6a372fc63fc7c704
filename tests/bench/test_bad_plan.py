"""A plan that nobody should want."""

from __future__ import annotations

from bench.bad_plan import even_cuts
from tests.coordinator.planner.instances import make_instance


def test_the_slowest_device_comes_first() -> None:
    plan = even_cuts(make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1))
    assert plan is not None
    assert plan.devices == ("b", "a")


def test_a_mini_batch_that_no_micro_batch_divides_has_a_smaller_last_one() -> None:
    plan = even_cuts(make_instance(mini_batch=100))
    assert plan is not None
    assert plan.micro_batch_sizes() == (12,) * 8 + (4,)


def test_one_that_does_not_fit_is_none() -> None:
    assert even_cuts(make_instance(memory_bytes=[500, 500])) is None
