"""Memory for links and for the all-reduce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.connection_memory import connection_bytes, peers_of
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from tests.coordinator.planner.instances import make_instance


def plan_of(*groups: dict[str, int]) -> Plan:
    stages = tuple(Stage(index, index + 1, shares, 1) for index, shares in enumerate(groups))
    micro_batch = sum(groups[0].values())
    return Plan(planner="by hand", micro_batch=micro_batch, micro_batches=2, stages=stages)


def with_links(instance: PlanningInstance) -> PlanningInstance:
    return replace(instance, training=replace(instance.training, peer_bytes=10, reduce_bytes=90))


def test_peers_share_samples_or_buckets() -> None:
    peers = peers_of(plan_of({"a": 2, "b": 6}, {"c": 4, "d": 4}))
    assert peers == {"a": {"b", "c"}, "b": {"a", "c", "d"}, "c": {"a", "b", "d"}, "d": {"b", "c"}}
    all_own = plan_of({"a": 1, "b": 1, "c": 1, "d": 1})
    assert peers_of(all_own)["a"] == {"b", "c", "d"}
    one_owns = replace(all_own, stages=(replace(all_own.stages[0], owners=("b",)),))
    assert peers_of(one_owns) == {"a": {"b"}, "b": {"a", "c", "d"}, "c": {"b"}, "d": {"b"}}


def test_links_beyond_two_peers_and_pieces_of_replicas() -> None:
    instance = with_links(make_instance(slower=(1.0,) * 5))
    two = connection_bytes(instance, plan_of({"a": 2, "b": 6}, {"c": 4, "d": 4}))
    assert two == {"a": 90, "b": 100, "c": 100, "d": 90}
    three = connection_bytes(instance, plan_of({"a": 4, "b": 2, "c": 2}, {"d": 8}))
    assert three == {"a": 100, "b": 100, "c": 100, "d": 10}
    assert connection_bytes(instance, plan_of({"a": 8}, {"b": 8})) == {"a": 0, "b": 0}


def test_an_owner_holds_what_all_the_others_send_it() -> None:
    """Of buckets of two pieces: four chunks of a bucket come to the owner and one copy goes; two replicas have three pieces."""
    instance = with_links(make_instance(slower=(1.0,) * 4))
    plan = plan_of({"a": 1, "b": 1, "c": 1, "d": 1})
    owned = connection_bytes(instance, replace(plan, stages=(replace(plan.stages[0], owners=("b",)),)))
    assert owned == {"a": 90, "b": 90 * 4 * 2 // 3 + 10, "c": 90, "d": 90}


def test_no_more_is_on_its_way_than_there_is() -> None:
    small = with_links(make_instance(slower=(1.0,) * 2, param_bytes=5))
    assert connection_bytes(small, plan_of({"a": 4, "b": 4})) == {"a": 20, "b": 20}


def test_a_plan_needs_it_beside_the_rest() -> None:
    instance = make_instance(slower=(1.0,) * 2)
    plan = plan_of({"a": 4, "b": 4})
    without, beside = plan_memory_bytes(instance, plan), plan_memory_bytes(with_links(instance), plan)
    assert {name: beside[name] - without[name] for name in without} == pytest.approx({"a": 90, "b": 90})
