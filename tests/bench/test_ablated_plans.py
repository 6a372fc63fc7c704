"""Plans with an idea taken out are whole plans, and blind for what they are to be blind for."""

from __future__ import annotations

from bench.ablated_plans import IN_FLIGHT_RULES, ablated_plans, fits, plan_or_none, with_in_flight
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.planners import make_plan
from tests.coordinator.planner.instances import make_instance

UNEQUAL = make_instance((1.0, 2.0, 1.0, 2.0), slower=(1.0, 2.0, 4.0), param_bytes=10, bandwidth=200.0)


def test_all_variants_are_plans_of_the_instance() -> None:
    plans = ablated_plans(UNEQUAL)
    assert list(plans) == ["asteroid", "no intra-stage planning", "no inter-stage planning", "naive"]
    for name, plan in plans.items():
        assert plan is not None, name
        UNEQUAL.validate_plan(plan)
        assert plan.micro_batch == plans["asteroid"].micro_batch  # type: ignore[union-attr]


def test_equal_shares_where_a_stage_is_replicated() -> None:
    """One stage over all: Asteroid gives the fastest most samples, without planning within stages all get the same."""
    instance = make_instance((1.0,), slower=(1.0, 2.0, 4.0), param_bytes=0, mini_batch=12)
    plans = ablated_plans(instance)
    asteroid, equal = plans["asteroid"], plans["no intra-stage planning"]
    assert asteroid is not None
    assert equal is not None
    assert len(set(asteroid.stages[0].shares.values())) > 1
    shares = equal.stages[0].shares.values()
    assert max(shares) - min(shares) <= 1


def test_naive_plans_do_not_see_that_memory_ends() -> None:
    instance = make_instance(slower=(1.0, 1.0), memory_bytes=[1400, 600])
    naive = ablated_plans(instance)["naive"]
    assert naive is not None
    assert not fits(instance, plan_memory_bytes(instance, naive))
    asteroid = make_plan(instance, "asteroid")
    assert fits(instance, plan_memory_bytes(instance, asteroid))


def test_rules_for_the_micro_batches_in_flight() -> None:
    plan = make_plan(make_instance(slower=(1.0, 1.0, 1.0), bandwidth=1e9), "pipeline", micro_batch=2)
    held = {
        name: tuple(stage.in_flight for stage in with_in_flight(plan, rule).stages)
        for name, rule in IN_FLIGHT_RULES.items()
    }
    assert held == {
        "K = M": (8, 8, 8),
        "K = 2(P-p)+1": (7, 5, 3),
        "K = 2(P-p)-1": (5, 3, 1),
        "K = P-p": (3, 2, 1),
    }


def test_no_plan_where_none_fits() -> None:
    assert plan_or_none(make_instance(memory_bytes=[10, 10]), "single") is None
