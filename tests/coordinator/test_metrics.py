from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.events import EvaluationDone, Event, RoundDone, RoundParts, StepDone, StepStarted
from edgeswarm_coordinator.metrics import metrics_document
from edgeswarm_coordinator.progress import Progress, StepTime
from edgeswarm_coordinator.round_history import RoundHistory


def done(number: int, loss: float, *, epoch: int = 0, seconds: float = 0.5) -> RoundDone:
    fetched = 800 if epoch == 0 else 10
    return RoundDone(
        round=number,
        rounds=2,
        epoch=epoch,
        loss=loss,
        samples=8,
        seconds=seconds,
        samples_per_second=16.0,
        seconds_left=None,
        stage_use=(0.5,),
        parts={
            "nano-1": RoundParts(seconds=seconds, forward=0.5, waiting={"samples": 0.0}, fetched_sample_bytes=fetched),
            "nano-2": RoundParts(seconds=seconds, fetched_sample_bytes=fetched),
        },
    )


def evaluation(number: int, loss: float, *, best: bool) -> EvaluationDone:
    return EvaluationDone(
        round=number, epoch=0, metrics={"loss": loss, "accuracy": 0.5}, samples=4, seconds=0.1, best=best
    )


def document_of(*rounds: RoundDone, evaluations: Sequence[EvaluationDone] = ()) -> dict[str, Any]:
    document = metrics_document(
        job_id="job",
        history=RoundHistory(rounds),
        rounds_seconds=2.0,
        until_first_round_seconds=9.0,
        steps=[StepTime("export model", "", 1.0, 2.0)],
        prepared={"nano-1": agent_pb2.PrepareReply(parameter_bytes=100, seconds={"rehearse": 0.5})},
        settings={"seed": 0},
        evaluations=evaluations,
    )
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    return document


def test_the_document_is_plain_json() -> None:
    document = document_of(done(0, 2.0), done(1, math.nan))
    totals = document["totals"]
    assert (totals["rounds"], totals["samples"], totals["seconds"], totals["samples_per_second"]) == (2, 16, 2.0, 8.0)
    assert (totals["loss"], totals["rounds_without_a_loss"]) == (None, 1)
    assert document["set_up"]["workers"]["nano-1"]["seconds"] == {"rehearse": 0.5}
    assert (document["evaluations"], document["best"]) == ([], None)


def test_the_first_epoch_and_the_later_ones_are_told_apart() -> None:
    rounds = [done(0, 2.0, seconds=1.0), done(1, 2.0, seconds=3.0), done(2, 1.0, epoch=1), done(3, 1.0, epoch=2)]
    totals = document_of(*rounds)["totals"]
    assert totals["first_epoch"] == {
        "samples": 16,
        "seconds": 4.0,
        "samples_per_second": 4.0,
        "fetched_sample_bytes": 3200,
    }
    assert totals["later_epochs"] == {
        "samples": 16,
        "seconds": 1.0,
        "samples_per_second": 16.0,
        "fetched_sample_bytes": 40,
    }
    assert document_of(*rounds[:2])["totals"]["later_epochs"]["samples_per_second"] == 0.0


@pytest.mark.parametrize("last_is_best", [True, False])
def test_evaluations_and_the_best_of_them(last_is_best: bool) -> None:
    evaluations = [evaluation(1, 2.0, best=True), evaluation(2, math.nan, best=False)]
    evaluations.append(evaluation(3, 1.0, best=last_is_best))
    document = document_of(done(0, 2.0), evaluations=evaluations)
    assert [entry["round"] for entry in document["evaluations"]] == [1, 2, 3]
    assert document["evaluations"][1]["metrics"] == {"loss": None, "accuracy": 0.5}
    assert document["best"] == document["evaluations"][2 if last_is_best else 0]


def test_steps_are_told_and_kept() -> None:
    events: list[Event] = []
    progress = Progress(events.append)
    with progress.step("plan", "asteroid"):
        pass
    assert [type(event) for event in events] == [StepStarted, StepDone]
    assert [(step.step, step.detail) for step in progress.steps] == [("plan", "asteroid")]
