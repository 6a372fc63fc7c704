from __future__ import annotations

import json
import math

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.events import Event, RoundDone, RoundParts, StepDone, StepStarted
from edgeswarm_coordinator.metrics import metrics_document
from edgeswarm_coordinator.progress import Progress, StepTime


def done(number: int, loss: float) -> RoundDone:
    return RoundDone(
        round=number,
        rounds=2,
        epoch=0,
        loss=loss,
        samples=8,
        seconds=0.5,
        samples_per_second=16.0,
        seconds_left=None,
        stage_use=(0.5,),
        parts={"nano-1": RoundParts(seconds=0.5, forward=0.5, waiting={"samples": 0.0})},
    )


def test_the_document_is_plain_json() -> None:
    document = metrics_document(
        job_id="job",
        rounds=[done(0, 2.0), done(1, math.nan)],
        rounds_seconds=2.0,
        until_first_round_seconds=9.0,
        steps=[StepTime("export model", "", 1.0, 2.0)],
        prepared={"nano-1": agent_pb2.PrepareReply(parameter_bytes=100, seconds={"rehearse": 0.5})},
        settings={"seed": 0},
    )
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["totals"] == {
        "rounds": 2,
        "samples": 16,
        "seconds": 2.0,
        "samples_per_second": 8.0,
        "loss": None,
        "rounds_without_a_loss": 1,
    }
    assert document["rounds"][0]["parts"]["nano-1"]["forward_seconds"] == 0.5
    assert document["set_up"]["workers"]["nano-1"]["seconds"] == {"rehearse": 0.5}


def test_steps_are_told_and_kept() -> None:
    events: list[Event] = []
    progress = Progress(events.append)
    with progress.step("plan", "asteroid"):
        pass
    assert [type(event) for event in events] == [StepStarted, StepDone]
    assert [(step.step, step.detail) for step in progress.steps] == [("plan", "asteroid")]
