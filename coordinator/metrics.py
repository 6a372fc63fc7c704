"""metrics.json: what a training was, in figures. Pure.

The document has:

    evaluations[]   metrics, samples, seconds, whether it was the best until then
    best            the best evaluation, or null
    share_moves[]   from which round on which device had how many samples of a micro-batch, other than before
    totals          rounds, samples, seconds, samples per second, final loss, rounds whose loss was no number; first_epoch and
                    later_epochs apart, since the first one fetches the samples which the later ones have at hand
    set_up          seconds until the first round, its steps, what each device's worker did to get ready
    rounds[]        loss, seconds, samples, the parts of it by device

All but the rounds is made here: those come from file to file (checkpoint.py), since a training of days has too many of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeswarm.wire.v1 import agent_pb2

from .evaluations import evaluation_to_json
from .events import EvaluationDone, RoundDone, SharesMoved
from .progress import StepTime
from .round_history import RoundHistory, RoundSums

FORMAT = "edgeswarm-metrics/1"
METRICS_NAME = "metrics.json"


def metrics_document(
    *,
    job_id: str,
    history: RoundHistory,
    rounds_seconds: float,
    until_first_round_seconds: float | None,
    steps: Sequence[StepTime],
    prepared: Mapping[str, agent_pb2.PrepareReply],
    settings: Mapping[str, Any],
    evaluations: Sequence[EvaluationDone] = (),
    moves: Sequence[SharesMoved] = (),
) -> dict[str, Any]:
    """The document as JSON values, without the rounds.

    history, evaluations: all of the job, those before a resume too, in their order.
    rounds_seconds: from Start to the end of the last round, with what is between rounds. until_first_round_seconds: from the
    command to the first round's end. steps: they overlap, hence when each began. prepared: what the workers said when they
    were ready (the last time), by device. moves: of shares, since the training was begun or resumed.
    """
    best = next((done for done in reversed(evaluations) if done.best), None)
    return {
        "format": FORMAT,
        "job_id": job_id,
        "settings": dict(settings),
        "evaluations": [evaluation_to_json(done) for done in evaluations],
        "best": None if best is None else evaluation_to_json(best),
        "share_moves": [move_to_json(move) for move in moves],
        "totals": {
            "rounds": history.rounds,
            "samples": history.samples,
            "seconds": rounds_seconds,
            "samples_per_second": _rate(history.samples, rounds_seconds),
            "loss": _finite(history.last_loss),
            "rounds_without_a_loss": history.without_a_loss,
            "first_epoch": _throughput(history.first_epoch),
            "later_epochs": _throughput(history.later_epochs),
        },
        "set_up": {
            "until_first_round_seconds": until_first_round_seconds,
            "steps": [
                {
                    "step": step.step,
                    "detail": step.detail,
                    "from_seconds": step.from_seconds,
                    "seconds": step.seconds,
                }
                for step in steps
            ],
            "workers": {
                device: {
                    "seconds": dict(reply.seconds),
                    "parameter_bytes": reply.parameter_bytes,
                    "peak_memory_bytes": reply.peak_memory_bytes,
                    "base_bytes": reply.base_bytes,
                    "fetch_peak_memory_bytes": reply.fetch_peak_memory_bytes,
                }
                for device, reply in prepared.items()
            },
        },
    }


def round_to_json(done: RoundDone) -> dict[str, Any]:
    document: dict[str, Any] = {
        "round": done.round,
        "epoch": done.epoch,
        "loss": _finite(done.loss),
        "samples": done.samples,
        "seconds": done.seconds,
        "stage_use": list(done.stage_use),
        "parts": {device: parts.to_json() for device, parts in done.parts.items()},
    }
    if done.gradient_norm is not None:
        document["gradient_norm"] = _finite(done.gradient_norm)
    if done.learning_rate_factor is not None:
        document["learning_rate_factor"] = _finite(done.learning_rate_factor)
    return document


def move_to_json(move: SharesMoved) -> dict[str, Any]:
    shares = {device: share for stage in move.plan.stages for device, share in stage.shares.items()}
    return {"round": move.round, "shares": shares, "expected_gain": move.gain}


def _throughput(sums: RoundSums) -> dict[str, Any]:
    return {
        "samples": sums.samples,
        "seconds": sums.seconds,
        "samples_per_second": _rate(sums.samples, sums.seconds),
        "fetched_sample_bytes": sums.fetched_sample_bytes,
    }


def _rate(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else 0.0


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
