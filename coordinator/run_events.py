"""How a training's record follows from its events. Pure."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm.errors import EdgeswarmError, ExitCode

from .events import (
    CheckpointWritten,
    DevicesFound,
    EvaluationDone,
    Event,
    PlanMade,
    RoundDone,
    StepDone,
    StepStarted,
    TrainingDone,
)
from .runs import LastEvaluation, RunRecord, number_or_none


def after(record: RunRecord, event: Event, *, now: float) -> RunRecord:
    """The record once the event is known; the same one where it says nothing that the record holds. now: since 1970."""
    changed = _after(record, event)
    return record if changed is record else replace(changed, updated=now)


def _after(record: RunRecord, event: Event) -> RunRecord:
    if isinstance(event, StepStarted):
        return replace(record, steps=(*record.steps, event.step))
    if isinstance(event, StepDone):
        return replace(record, steps=_without(record.steps, event.step)) if event.step in record.steps else record
    if isinstance(event, DevicesFound):
        return replace(record, devices=tuple(device.node_id for device in event.devices))
    if isinstance(event, PlanMade):
        return replace(record, devices=tuple(event.plan.devices))
    if isinstance(event, RoundDone):
        return replace(
            record,
            round=event.round + 1,
            rounds=event.rounds,
            epoch=event.epoch,
            loss=number_or_none(event.loss),
            samples_per_second=number_or_none(event.samples_per_second),
            seconds_left=number_or_none(event.seconds_left),
        )
    if isinstance(event, EvaluationDone):
        numbers = {name: value for name, value in event.metrics.items() if number_or_none(value) is not None}
        return replace(record, evaluation=LastEvaluation(event.epoch, numbers, event.best))
    if isinstance(event, CheckpointWritten):
        return replace(record, checkpoint_round=event.round)
    if isinstance(event, TrainingDone):
        return replace(record, round=event.rounds, loss=number_or_none(event.loss), seconds_left=0.0)
    return record


def ended(record: RunRecord, error: EdgeswarmError | None, *, now: float) -> RunRecord:
    """The record of a training that is over. error: None where it is done."""
    return replace(
        record,
        steps=(),
        seconds_left=None,
        updated=now,
        ended=now,
        exit_code=int(ExitCode.DONE if error is None else error.exit_code),
        error={} if error is None else error.to_json(),
    )


def _without(steps: tuple[str, ...], step: str) -> tuple[str, ...]:
    """One of a kind less: two steps of one name (job files to two devices) may run at once."""
    place = steps.index(step)
    return steps[:place] + steps[place + 1 :]
