"""From the reports of the last stage's replicas to evaluations, to the best of them, and to the end of a training that gets
no better. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgeswarm.json_fields import Fields
from edgeswarm.wire.v1 import agent_pb2

from .events import EvaluationDone


class EvaluationCollector:
    """Gathers the parts of one evaluation.

    replicas: of the last stage. round: after how many rounds it is made. epoch: of the plan, as the reports say it.
    """

    def __init__(self, replicas: Iterable[str], *, epoch: int, round: int) -> None:
        self._replicas = tuple(replicas)
        self._waiting_for = set(self._replicas)
        self._epoch = epoch
        self._round = round
        self._reports: dict[str, agent_pb2.EvaluationReport] = {}

    @property
    def complete(self) -> bool:
        return not self._waiting_for

    def add(self, device: str, report: agent_pb2.EvaluationReport) -> None:
        """Reports of another evaluation and repeated ones change nothing."""
        if (report.epoch, report.round) == (self._epoch, self._round) and device in self._waiting_for:
            self._waiting_for.discard(device)
            self._reports[device] = report

    def done(self, *, data_epoch: int) -> EvaluationDone:
        """The evaluation of all parts, not yet compared with others. data_epoch: of the data, that ended before it."""
        assert self.complete, "there are parts that have not come"
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        reports = [self._reports[device] for device in self._replicas]  # sums of the same bits, whoever was first
        for report in reports:
            for metric in report.metrics:
                sums[metric.name] = sums.get(metric.name, 0.0) + metric.sum
                counts[metric.name] = counts.get(metric.name, 0.0) + metric.count
        return EvaluationDone(
            round=self._round,
            epoch=data_epoch,
            metrics={name: sums[name] / counts[name] if counts[name] else math.nan for name in sums},
            samples=sum(report.samples for report in reports),
            seconds=max(report.seconds for report in reports),
            best=False,
        )


@dataclass(frozen=True)
class Evaluations:
    """All evaluations so far. watched: the metric by which the best is chosen. lowest: its lowest value is the best one."""

    watched: str
    lowest: bool
    done: tuple[EvaluationDone, ...] = ()

    @property
    def best(self) -> EvaluationDone | None:
        return next((evaluation for evaluation in reversed(self.done) if evaluation.best), None)

    @property
    def without_better(self) -> int:
        """How many evaluations, one after the other, were no better than the best before."""
        count = 0
        for evaluation in reversed(self.done):
            if evaluation.best:
                break
            count += 1
        return count

    def with_new(self, evaluation: EvaluationDone) -> Evaluations:
        """These and a new one, which is now compared with the best. A value that isn't finite is never the best."""
        new = evaluation.metrics.get(self.watched, math.nan)
        old = self.best.metrics.get(self.watched, math.nan) if self.best is not None else math.nan
        better = math.isfinite(new) and (not math.isfinite(old) or (new < old if self.lowest else new > old))
        return replace(self, done=(*self.done, replace(evaluation, best=better)))


def evaluation_to_json(evaluation: EvaluationDone) -> dict[str, object]:
    """As it stands in metrics.json and in a checkpoint's manifest; a value that isn't finite is null there."""
    return {
        "round": evaluation.round,
        "epoch": evaluation.epoch,
        "metrics": {name: value if math.isfinite(value) else None for name, value in evaluation.metrics.items()},
        "samples": evaluation.samples,
        "seconds": evaluation.seconds,
        "best": evaluation.best,
    }


def evaluation_from_json(fields: Fields) -> EvaluationDone:
    """Raises the document's own error."""
    return EvaluationDone(
        round=fields.integer("round", minimum=0),
        epoch=fields.integer("epoch", minimum=0),
        metrics=_metrics(fields.section("metrics")),
        samples=fields.integer("samples", minimum=0),
        seconds=fields.number("seconds", minimum=0.0),
        best=fields.flag("best"),
    )


def _metrics(fields: Fields) -> Mapping[str, float]:
    return {name: fields.number(name) if fields.has(name) else math.nan for name in fields.names()}
