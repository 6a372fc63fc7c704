"""metrics.json: what a training was, in figures. Pure.

The document has:

    rounds[]        loss, seconds, samples, the parts of it by device
    evaluations[]   metrics, samples, seconds, whether it was the best until then
    best            the best evaluation, or null
    share_moves[]   from which round on which device had how many samples of a micro-batch, other than before
    totals          rounds, samples, seconds, samples per second, final loss, rounds whose loss was no number; first_epoch and
                    later_epochs apart, since the first one fetches the samples which the later ones have at hand
    set_up          seconds until the first round, its steps, what each device's worker did to get ready
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeswarm.wire.v1 import agent_pb2

from .evaluations import evaluation_to_json
from .events import EvaluationDone, RoundDone, SharesMoved
from .progress import StepTime

FORMAT = "edgeswarm-metrics/1"


def metrics_document(
    *,
    job_id: str,
    rounds: Sequence[RoundDone],
    rounds_seconds: float,
    until_first_round_seconds: float | None,
    steps: Sequence[StepTime],
    prepared: Mapping[str, agent_pb2.PrepareReply],
    settings: Mapping[str, Any],
    evaluations: Sequence[EvaluationDone] = (),
    moves: Sequence[SharesMoved] = (),
) -> dict[str, Any]:
    """The document as JSON values.

    rounds, evaluations: all of the job, those before a resume too, in their order.
    rounds_seconds: from Start to the end of the last round, with what is between rounds. until_first_round_seconds: from the
    command to the first round's end. steps: they overlap, hence when each began. prepared: what the workers said when they
    were ready (the last time), by device. moves: of shares, since the training was begun or resumed.
    """
    samples = sum(done.samples for done in rounds)
    best = next((done for done in reversed(evaluations) if done.best), None)
    return {
        "format": FORMAT,
        "job_id": job_id,
        "settings": dict(settings),
        "rounds": [round_to_json(done) for done in rounds],
        "evaluations": [evaluation_to_json(done) for done in evaluations],
        "best": None if best is None else evaluation_to_json(best),
        "share_moves": [move_to_json(move) for move in moves],
        "totals": {
            "rounds": len(rounds),
            "samples": samples,
            "seconds": rounds_seconds,
            "samples_per_second": _rate(samples, rounds_seconds),
            "loss": _finite(rounds[-1].loss) if rounds else None,
            "rounds_without_a_loss": sum(not math.isfinite(done.loss) for done in rounds),
            "first_epoch": _throughput([done for done in rounds if done.epoch == 0]),
            "later_epochs": _throughput([done for done in rounds if done.epoch > 0]),
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


def _throughput(rounds: Sequence[RoundDone]) -> dict[str, Any]:
    """What some rounds did together. seconds: of the rounds alone, without evaluations and checkpoints between them."""
    samples = sum(done.samples for done in rounds)
    seconds = sum(done.seconds for done in rounds)
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": _rate(samples, seconds),
        "fetched_sample_bytes": sum(part.fetched_sample_bytes for done in rounds for part in done.parts.values()),
    }


def _rate(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else 0.0


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
