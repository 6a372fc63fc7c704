"""A training's record: how it follows from events, to JSON and back, and what state it means."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.events import (
    CheckpointWritten,
    DevicesFound,
    EvaluationDone,
    Event,
    PlanMade,
    RoundDone,
    StepDone,
    StepStarted,
    TrainingDone,
    Warning,
)
from edgeswarm_coordinator.run_events import after, ended
from edgeswarm_coordinator.runs import LastEvaluation, ProcessName, RunRecord, RunState

BEGUN = RunRecord(
    job_id="digits-20260105T101500Z-1f3a",
    name="digits",
    job_file="/home/me/digits.py",
    folder="/home/me/edgeswarm-out-digits",
    process=ProcessName(4711, "12345 boot"),
    host="desk",
    machine="desk",
    started=1000.0,
    updated=1000.0,
)
ROUND = RoundDone(
    round=11,
    rounds=184,
    epoch=2,
    loss=1.25,
    samples=64,
    seconds=0.08,
    samples_per_second=800.0,
    seconds_left=101.0,
    stage_use=(0.8,),
    parts={},
)


def following(*events: Event) -> RunRecord:
    record = BEGUN
    for number, event in enumerate(events, start=1):
        record = after(record, event, now=BEGUN.started + number)
    return record


def test_steps_that_overlap_are_those_that_run_now() -> None:
    record = following(
        StepStarted("send job files", "a"),
        StepStarted("export model"),
        StepStarted("send job files", "b"),
        StepDone("send job files", 1.0, "a"),
        StepDone("a step that nobody began", 1.0),
    )
    assert record.steps == ("export model", "send job files")
    assert record.updated == 1004.0, "the last event changed nothing"


def test_devices_are_those_found_until_the_plan_names_its_own() -> None:
    found = DevicesFound((Device("a", "10.0.0.1:7600"), Device("b", "10.0.0.2:7600")), "mdns")
    plan = Plan("by hand", 4, 2, (Stage(0, 2, {"b": 4}, 1),))
    assert following(found).devices == ("a", "b")
    assert following(found, PlanMade(plan, None, ("stem", "head"))).devices == ("b",)


def test_a_round_says_how_far_it_is() -> None:
    record = following(ROUND)
    assert (record.round, record.rounds, record.epoch, record.loss) == (12, 184, 2, 1.25)
    assert (record.samples_per_second, record.seconds_left) == (800.0, 101.0)


def test_what_is_no_number_is_left_out() -> None:
    record = following(
        dataclasses.replace(ROUND, loss=math.nan),
        EvaluationDone(12, 2, {"loss": math.inf, "accuracy": 0.5}, samples=10, seconds=1.0, best=False),
    )
    assert record.loss is None
    assert record.evaluation == LastEvaluation(2, {"accuracy": 0.5}, best=False)
    json.dumps(record.to_json(), allow_nan=False)


def test_a_warning_changes_nothing() -> None:
    assert after(BEGUN, Warning("the clock is wrong"), now=2000.0) is BEGUN


EVERYTHING = following(
    StepStarted("train"),
    ROUND,
    EvaluationDone(12, 2, {"loss": 0.5}, samples=10, seconds=1.0, best=True),
    CheckpointWritten(12, Path("out.unfinished"), 100, 0.1),
    TrainingDone(Path("out"), 184, 0.0123, 17.0, 25.0),
)


@pytest.mark.parametrize(
    "record",
    [
        BEGUN,
        EVERYTHING,
        ended(EVERYTHING, None, now=1100.0),
        ended(BEGUN, EdgeswarmError(ErrorCode.DEVICE_LOST, "nano-1 was lost.", "Look after it."), now=1100.0),
    ],
)
def test_a_record_survives_json(record: RunRecord) -> None:
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json())), where="run.json") == record


def test_the_end_has_exit_code_and_error() -> None:
    error = EdgeswarmError(ErrorCode.NO_PLAN_FITS, "no plan fits", "use a smaller model")
    record = ended(EVERYTHING, error, now=1100.0)
    assert (record.exit_code, record.ended, record.steps) == (4, 1100.0, ())
    assert record.failure is not None
    assert (record.failure.code, record.failure.remedy) == (ErrorCode.NO_PLAN_FITS, "use a smaller model")


@pytest.mark.parametrize(
    ("error", "alive", "state"),
    [
        (None, False, RunState.DONE),
        (None, True, RunState.DONE),
        (EdgeswarmError(ErrorCode.INTERRUPTED, "interrupted"), False, RunState.STOPPED),
        (EdgeswarmError(ErrorCode.DEVICE_LOST, "lost"), False, RunState.FAILED),
    ],
)
def test_the_state_of_one_that_ended(error: EdgeswarmError | None, alive: bool, state: RunState) -> None:
    assert ended(BEGUN, error, now=1100.0).state(alive=alive) is state


def test_one_without_an_end_runs_or_was_lost() -> None:
    assert BEGUN.state(alive=True) is RunState.RUNNING
    assert BEGUN.state(alive=False) is RunState.LOST


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "edgeswarm-run/0"}, "format"),
        ({"process": {"pid": 0, "began": ""}}, "process.pid"),
        ({"round": -1}, "round"),
        ({"evaluation": {"epoch": 0, "metrics": {"loss": "low"}, "best": True}}, "evaluation.metrics.loss"),
        ({"error": {"code": 7}}, "error.code"),
    ],
)
def test_a_damaged_record_names_the_file_and_the_field(change: dict[str, object], named: str) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        RunRecord.from_json({**BEGUN.to_json(), **change}, where="/runs/x/run.json")
    assert "/runs/x/run.json" in caught.value.message
    assert named in caught.value.message
