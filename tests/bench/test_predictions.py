"""The plans that are trained: distinct ones, among them a bad one."""

from __future__ import annotations

from bench.bad_plan import BAD_PLAN
from bench.cell import Cell
from bench.predictions import CELLS, plans_of
from tests.coordinator.planner.instances import make_instance


def test_cells() -> None:
    assert len({Cell.parse(text).name for text in CELLS}) == len(CELLS)


def test_the_bad_plan_is_worse_than_the_others() -> None:
    instance = make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1)
    plans = plans_of(instance)
    seconds = {name: plan.predicted.round_seconds for name, plan in plans.items() if plan.predicted is not None}
    assert seconds[BAD_PLAN] == max(seconds.values())
