from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm.samples import SampleOrder
from edgeswarm_coordinator.last_round import check_batches, check_plan


def layers(*least: int) -> Any:
    return [SimpleNamespace(name=f"block.{index}", least_batch=number) for index, number in enumerate(least)]


def test_a_rest_that_a_layer_cannot_take_is_refused_by_name() -> None:
    with pytest.raises(
        EdgeswarmError, match=r"has 1 sample \(41 in batches of 8\), but the layer block.1 needs"
    ) as caught:
        check_batches(layers(1, 2), SampleOrder(41, 8, 0))
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "drop_last" in caught.value.remedy
    check_batches(layers(1, 2), SampleOrder(41, 8, 0, drop_last=True))


@pytest.mark.parametrize(("length", "least"), [(40, 2), (42, 2), (41, 1)])
def test_other_rests_are_fine(length: int, least: int) -> None:
    check_batches(layers(1, least), SampleOrder(length, 8, 0))


def test_a_batch_below_the_least_is_refused() -> None:
    with pytest.raises(EdgeswarmError, match=r"batch_size is 1, but the layer block.0 needs at least 2"):
        check_batches(layers(2), SampleOrder(40, 1, 0))


def replicated(first: int, second: int) -> Plan:
    shares = {"a": first, "b": second}
    stage = Stage(first_layer=0, end_layer=2, shares=shares, in_flight=1)
    return Plan(planner="hand", micro_batch=4, micro_batches=2, stages=(stage,))


def test_a_rest_that_leaves_a_replica_too_little_is_refused() -> None:
    """3 samples over two replicas that hold 2 each: one of them gets a single sample."""
    with pytest.raises(EdgeswarmError, match=r"The last round of an epoch has 3 samples .* takes 1 of") as caught:
        check_plan(replicated(2, 2), layers(1, 2), SampleOrder(43, 8, 0))
    assert caught.value.code is ErrorCode.PLAN_INVALID
    check_plan(replicated(2, 2), layers(1, 1), SampleOrder(43, 8, 0))
    check_plan(replicated(2, 2), layers(1, 2), SampleOrder(43, 8, 0, drop_last=True))
    check_plan(replicated(2, 2), layers(1, 2), SampleOrder(42, 8, 0))
    check_plan(replicated(3, 1), layers(1, 1), SampleOrder(43, 8, 0))
