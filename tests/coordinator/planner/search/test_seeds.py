"""Asteroid's plans that the search starts from."""

from __future__ import annotations

from edgeswarm_coordinator.planner.search.seeds import seed_plans

from ..instances import make_instance


def test_a_size_whose_rest_cannot_be_split_gives_none() -> None:
    """Shares (2, 2) of a micro-batch, and 3 samples in the last one of 31: one of the two would get a single sample."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0), least_batch=2, mini_batch=31)
    assert seed_plans(instance, (4,)) == []
    (whole,) = seed_plans(instance, (31,))
    assert whole.stages[0].shares == {"a": 16, "b": 15}


def test_where_it_costs_much_there_are_none() -> None:
    assert seed_plans(make_instance((1.0,) * 40, (1.0,) * 6), (16,))
    assert seed_plans(make_instance((1.0,) * 41, (1.0,) * 6), (16,)) == []
