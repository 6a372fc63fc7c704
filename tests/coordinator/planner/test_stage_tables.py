"""Costs of stages: those the cost model gives, and the same whatever ends are asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.plan import Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.asteroid import memory_order
from edgeswarm_coordinator.planner.cost_model import stage_step
from edgeswarm_coordinator.planner.stage_tables import StageTables

from .instances import instances, make_instance


@settings(max_examples=60, deadline=None)
@given(data=st.data(), instance=instances(uniform_links=False), micro_batch=st.integers(1, 4))
def test_a_stage_costs_what_the_cost_model_says_whatever_else_is_asked_for(
    data: st.DataObject, instance: PlanningInstance, micro_batch: int
) -> None:
    order = memory_order(instance)
    count = instance.model.layer_count
    tables = StageTables(instance, order, micro_batch=micro_batch)
    first = data.draw(st.integers(0, len(order) - 1))
    end = data.draw(st.integers(first + 1, len(order)))
    to_end = data.draw(st.integers(1, 3))
    ends = np.array([data.draw(st.booleans()) for _ in range(count + 1)])
    every, some = tables.costs(first, end, to_end), tables.costs(first, end, to_end, ends=ends)
    names = [instance.devices[place].name for place in order[first:end]]
    for i in range(count):
        for j in range(i + 1, count + 1):
            seconds = every.seconds_of(i, j)
            asked = to_end == 1 or ends[j]
            assert some.seconds_of(i, j) == (seconds if asked else math.inf)
            if math.isfinite(seconds):
                shares = {name: n for name, n in zip(names, every.shares_of(i, j), strict=True) if n}
                assert seconds == pytest.approx(stage_step(instance, 0, Stage(i, j, shares, 1)).seconds)
                if asked:
                    assert some.shares_of(i, j) == every.shares_of(i, j)


def test_what_a_group_cannot_hold_has_no_seconds() -> None:
    instance = make_instance((1.0,) * 3, (1.0,), [700], param_bytes=100, saved_bytes=10)
    costs = StageTables(instance, [0], micro_batch=4).costs(0, 1, 1)
    # From layer 0 to the end, the only stage that one device makes: 900 bytes and the activations.
    assert math.isinf(costs.seconds_of(0, 3))
    assert len(costs.first) == 0
    with pytest.raises(AssertionError):
        costs.shares_of(0, 3)
