from __future__ import annotations

from edgeswarm.plan import Plan, Stage
from edgeswarm.routes import Routes, TiedTensor
from edgeswarm.samples import Interval

PLAN = Plan(
    planner="hand",
    micro_batch=4,
    micro_batches=2,
    stages=(Stage(0, 2, {"a": 3, "b": 1}, 3), Stage(2, 3, {"c": 2, "d": 2}, 1)),
)


def test_frames_follow_the_overlaps_of_sample_intervals() -> None:
    first = Routes(PLAN, "a").micro_batch(4)
    assert first is not None
    assert first.interval == Interval(0, 3)
    assert first.upstream == ()
    assert first.downstream == (("c", Interval(0, 2)), ("d", Interval(2, 3)))
    last = Routes(PLAN, "d").micro_batch(4)
    assert last is not None
    assert last.upstream == (("a", Interval(2, 3)), ("b", Interval(3, 4)))


def test_a_replica_without_samples_has_no_route() -> None:
    assert Routes(PLAN, "b").micro_batch(1) is None
    assert Routes(PLAN, "a").micro_batch(1) is not None


def test_every_receiver_is_a_peer_of_its_sender() -> None:
    for device in PLAN.devices:
        routes = Routes(PLAN, device)
        peers = routes.peers_to_send_to({8, 3})
        for samples in (8, 3):
            for size in routes.micro_batch_sizes(samples):
                route = routes.micro_batch(size)
                if route is not None:
                    assert {name for name, _ in (*route.upstream, *route.downstream)} <= set(peers)


def test_leaders_talk_to_each_other_and_to_their_replicas_where_totals_are_exchanged() -> None:
    alone = Routes(PLAN, "c").peers_to_send_to({8})
    assert Routes(PLAN, "c").peers_to_send_to({8}, exchanges_totals=True) == (*alone,)
    tied = [TiedTensor("embedding", (0, 1))]
    assert "d" in Routes(PLAN, "c").peers_to_send_to({8}, tied=tied)
    assert Routes(PLAN, "a").leader_of(1) == "c"
    assert not Routes(PLAN, "d").is_leader
