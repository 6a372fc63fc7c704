"""metrics.json: what a training was, in figures. Pure.

The document has:

    rounds[]    loss, seconds, samples, the parts of it by device
    totals      rounds, samples, seconds, samples per second, final loss, rounds whose loss was no number
    set_up      seconds until the first round, its steps, what each device's worker did to get ready
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeswarm.wire.v1 import agent_pb2

from .events import RoundDone
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
) -> dict[str, Any]:
    """The document as JSON values.

    rounds_seconds: from Start to the end of the last round. until_first_round_seconds: from the command to the first
    round's end. steps: they overlap, hence when each began. prepared: what the workers said when they were ready, by device.
    """
    samples = sum(done.samples for done in rounds)
    return {
        "format": FORMAT,
        "job_id": job_id,
        "settings": dict(settings),
        "rounds": [round_to_json(done) for done in rounds],
        "totals": {
            "rounds": len(rounds),
            "samples": samples,
            "seconds": rounds_seconds,
            "samples_per_second": samples / rounds_seconds if rounds_seconds > 0 else 0.0,
            "loss": _finite(rounds[-1].loss) if rounds else None,
            "rounds_without_a_loss": sum(not math.isfinite(done.loss) for done in rounds),
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
    return document


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
