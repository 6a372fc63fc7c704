"""The few cuts that stand for all."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm_coordinator.planner.search.cut_points import candidate_cuts

from ..instances import make_instance


def test_all_where_they_are_few() -> None:
    assert candidate_cuts(make_instance((1.0,) * 5), 6) == [0, 1, 2, 3, 4, 5]


def test_the_cheapest_of_each_run_of_work() -> None:
    instance = make_instance((1.0,) * 60, param_bytes=0)
    layers = list(instance.model.layers)
    for place in (14, 29, 44):
        layers[place] = replace(layers[place], output_bytes=1)
    cuts = candidate_cuts(replace(instance, model=replace(instance.model, layers=tuple(layers))), 10)
    assert {0, 15, 30, 45, 60} <= set(cuts)
    assert cuts == sorted(cuts)
    assert len(cuts) <= 10
