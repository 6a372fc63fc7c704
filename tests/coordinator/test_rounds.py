from __future__ import annotations

import itertools
import math

import pytest

from edgeswarm.plan import Plan, Stage
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.events import RoundDone
from edgeswarm_coordinator.rounds import RoundCollector, parts_of

PLAN = Plan(
    planner="by hand",
    micro_batch=4,
    micro_batches=2,
    stages=(Stage(0, 2, {"a": 4}, 3), Stage(2, 3, {"b": 3, "c": 1}, 1)),
)
ORDER = SampleOrder(dataset_length=20, batch_size=8, seed=0)


def report(
    number: int, *, epoch: int = 1, loss_sum: float | None = None, computing: float = 0.5
) -> agent_pb2.RoundReport:
    told = agent_pb2.RoundReport(
        epoch=epoch, round=number, seconds=1.0, forward_seconds=computing, waiting_seconds={"samples": 1.0 - computing}
    )
    if loss_sum is not None:
        told.loss_sum = loss_sum
        told.loss_count = 8.0
    return told


def collector() -> RoundCollector:
    return RoundCollector(plan=PLAN, order=ORDER, rounds=6, epoch=1)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_a_round_is_done_when_every_device_has_reported(order: tuple[str, ...]) -> None:
    gather = collector()
    done: list[RoundDone] = []
    for device in order:
        assert not done
        done = gather.add(device, report(0, loss_sum=4.0 if device == "b" else None))
    assert [entry.round for entry in done] == [0]
    assert done[0].loss == pytest.approx(0.5)
    assert done[0].samples == 8
    assert set(done[0].parts) == {"a", "b", "c"}


def test_rounds_come_out_in_order_though_devices_run_ahead() -> None:
    gather = collector()
    for number in range(3):
        assert gather.add("a", report(number)) == []
        assert gather.add("c", report(number)) == []
    rounds = [done.round for number in range(3) for done in gather.add("b", report(number, loss_sum=8.0))]
    assert rounds == [0, 1, 2]
    assert gather.next_round == 3


def test_a_round_whose_report_was_dropped_is_passed_over() -> None:
    gather = collector()
    for number in range(4):
        gather.add("a", report(number))
        gather.add("c", report(number))
    assert gather.add("b", report(2, loss_sum=8.0))[0].round == 2  # 0 and 1 will never come
    assert [done.round for done in gather.add("b", report(3, loss_sum=8.0))] == [3]
    assert gather.next_round == 4


def test_the_last_mini_batch_of_an_epoch_is_smaller() -> None:
    gather = collector()
    done = [
        entry for number in range(6) for device in "abc" for entry in gather.add(device, report(number, loss_sum=1.0))
    ]
    assert [entry.samples for entry in done] == [8, 8, 4, 8, 8, 4]
    assert [entry.epoch for entry in done] == [0, 0, 0, 1, 1, 1]
    assert done[0].seconds_left is None
    assert done[-1].seconds_left == 0.0


def test_what_is_left_has_rounds_and_evaluations() -> None:
    def left(gather: RoundCollector) -> list[float | None]:
        return [
            done.seconds_left
            for number in range(6)
            for device in "abc"
            for done in gather.add(device, report(number, loss_sum=1.0))
        ]

    with_evaluations = collector()
    with_evaluations.evaluations_seconds = 100.0
    rounds_alone = left(collector())
    assert left(with_evaluations) == [None, *(seconds + 100.0 for seconds in rounds_alone if seconds is not None)]


def test_stage_use_is_the_mean_of_the_replicas() -> None:
    gather = collector()
    gather.add("a", report(0, computing=1.0))
    gather.add("b", report(0, computing=0.6, loss_sum=1.0))
    (done,) = gather.add("c", report(0, computing=0.2))
    assert done.stage_use == pytest.approx((1.0, 0.4))


def test_another_epoch_another_device_and_a_repeated_report_change_nothing() -> None:
    gather = collector()
    assert gather.add("a", report(0, epoch=2)) == []
    assert gather.add("x", report(0)) == []
    for device in "abc":
        gather.add(device, report(0, loss_sum=1.0))
    assert gather.add("a", report(0)) == []
    assert gather.next_round == 1


def test_a_count_of_zero_gives_no_number() -> None:
    gather = collector()
    gather.add("a", report(0))
    gather.add("b", report(0))
    (done,) = gather.add("c", report(0))
    assert math.isnan(done.loss)


def test_parts_add_up() -> None:
    told = agent_pb2.RoundReport(
        seconds=10.0,
        forward_seconds=1,
        backward_seconds=2,
        send_seconds=0.5,
        waiting_seconds={"samples": 1, "gradients from b": 2},
        all_reduce_seconds=1.5,
        step_seconds=1,
        other_seconds=1,
    )
    parts = parts_of(told)
    assert parts.add_up == pytest.approx(parts.seconds)
    assert parts.computing == 4.0


def test_the_factor_on_the_learning_rate_is_that_of_the_round() -> None:
    gather = RoundCollector(plan=PLAN, order=ORDER, rounds=6, epoch=1, learning_rate_schedule=lambda r: 1 / (1 + r))
    for number in range(2):
        for device in "ac":
            gather.add(device, report(number))
    factors = [done.learning_rate_factor for number in range(2) for done in gather.add("b", report(number))]
    assert factors == [1.0, 0.5]
    plain = collector()
    for device in "ac":
        plain.add(device, report(0))
    assert plain.add("b", report(0))[0].learning_rate_factor is None
