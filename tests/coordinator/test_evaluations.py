from __future__ import annotations

import json
import math

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.json_fields import Fields
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.evaluations import (
    EvaluationCollector,
    Evaluations,
    evaluation_from_json,
    evaluation_to_json,
)
from edgeswarm_coordinator.events import EvaluationDone


def report(
    samples: int, *, epoch: int = 1, round: int = 10, **metrics: tuple[float, float]
) -> agent_pb2.EvaluationReport:
    return agent_pb2.EvaluationReport(
        epoch=epoch,
        round=round,
        seconds=samples / 10,
        samples=samples,
        metrics=[agent_pb2.MetricSum(name=name, sum=total, count=count) for name, (total, count) in metrics.items()],
    )


def done(round: int, **metrics: float) -> EvaluationDone:
    return EvaluationDone(round=round, epoch=round - 1, metrics=metrics, samples=5, seconds=1.0, best=False)


def test_the_sums_of_all_replicas_by_the_counts_of_all() -> None:
    collector = EvaluationCollector(["a", "b"], epoch=1, round=10)
    collector.add("a", report(30, loss=(60.0, 30.0), tokens=(9.0, 300.0)))
    collector.add("a", report(99, loss=(0.0, 1.0)))  # again: changes nothing
    collector.add("c", report(99, loss=(0.0, 1.0)))  # no replica of the last stage
    collector.add("b", report(99, epoch=2, loss=(0.0, 1.0)))
    collector.add("b", report(99, round=20, loss=(0.0, 1.0)))
    assert not collector.complete
    collector.add("b", report(10, loss=(100.0, 10.0), tokens=(1.0, 100.0)))
    assert collector.complete
    evaluation = collector.done(data_epoch=4)
    assert evaluation.metrics == {"loss": 4.0, "tokens": 0.025}
    assert (evaluation.round, evaluation.epoch, evaluation.samples, evaluation.seconds) == (10, 4, 40, 3.0)


def test_who_reports_first_changes_no_bit() -> None:
    sums = {"a": 1e16, "b": 1.0, "c": -1e16}
    found = set()
    for order in ("abc", "acb", "cba"):
        collector = EvaluationCollector("abc", epoch=1, round=10)
        for device in order:
            collector.add(device, report(1, loss=(sums[device], 1.0)))
        found.add(collector.done(data_epoch=4).metrics["loss"])
    assert len(found) == 1


def test_a_replica_without_samples_counts_for_nothing_and_nothing_counted_is_nan() -> None:
    collector = EvaluationCollector(["a", "b"], epoch=1, round=10)
    collector.add("a", report(0))
    collector.add("b", report(4, loss=(2.0, 4.0), tokens=(0.0, 0.0)))
    metrics = collector.done(data_epoch=0).metrics
    assert metrics["loss"] == 0.5
    assert math.isnan(metrics["tokens"])


def test_without_an_evaluation_nobody_is_waited_for() -> None:
    assert EvaluationCollector([], epoch=1, round=10).complete


@pytest.mark.parametrize(
    ("lowest", "values", "best_of_each", "without_better"),
    [
        (True, [3.0, 2.0, 2.0, 1.0, 5.0, 4.0], [True, True, False, True, False, False], 2),
        (False, [0.1, 0.4, 0.3, 0.4], [True, True, False, False], 2),
        (True, [math.nan, 7.0, math.nan, 6.0], [False, True, False, True], 0),
        (True, [math.nan, math.inf], [False, False], 2),
        (False, [math.inf, 0.5], [False, True], 0),
    ],
)
def test_the_best_and_how_long_ago(
    lowest: bool, values: list[float], best_of_each: list[bool], without_better: int
) -> None:
    evaluations = Evaluations("score", lowest)
    for index, value in enumerate(values):
        evaluations = evaluations.with_new(done(index + 1, score=value, loss=-index))
    assert [evaluation.best for evaluation in evaluations.done] == best_of_each
    assert evaluations.without_better == without_better
    assert (evaluations.best is None) == (True not in best_of_each)
    if evaluations.best is not None:
        assert evaluations.best.round == len(values) - without_better


def test_after_the_watched_metric_was_changed_the_first_value_is_the_best() -> None:
    evaluations = Evaluations("loss", True).with_new(done(1, loss=2.0))
    changed = Evaluations("accuracy", False, evaluations.done).with_new(done(2, loss=3.0, accuracy=0.1))
    assert changed.best is not None
    assert changed.best.round == 2


def test_there_and_back_through_json() -> None:
    evaluation = done(3, loss=0.25, accuracy=math.nan)
    text = json.dumps(evaluation_to_json(evaluation), allow_nan=False)
    again = evaluation_from_json(
        Fields.of(json.loads(text), lambda problem: EdgeswarmError(ErrorCode.CHECKPOINT, problem), what="it")
    )
    assert again.metrics["loss"] == 0.25
    assert math.isnan(again.metrics["accuracy"])
    assert evaluation_to_json(again) == evaluation_to_json(evaluation)
