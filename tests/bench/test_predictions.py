"""The plans that are trained: distinct ones, among them a bad one."""

from __future__ import annotations

from bench.cell import Cell
from bench.predictions import CELLS, even_cuts, plans_of
from tests.coordinator.planner.instances import make_instance


def test_cells() -> None:
    assert len({Cell.parse(text).name for text in CELLS}) == len(CELLS)


def test_the_bad_plan_is_worse_than_the_others() -> None:
    instance = make_instance((1.0, 5.0, 1.0, 1.0), slower=(1.0, 4.0), param_bytes=1)
    plans = plans_of(instance)
    bad = even_cuts(instance)
    assert bad is not None
    assert bad.devices == ("b", "a")
    seconds = {name: plan.predicted.round_seconds for name, plan in plans.items() if plan.predicted is not None}
    assert seconds["even cuts, slowest first"] == max(seconds.values())


def test_a_bad_plan_that_does_not_fit_is_left_out() -> None:
    assert even_cuts(make_instance(memory_bytes=[500, 500])) is None
