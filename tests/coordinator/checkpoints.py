"""Manifests, rounds and layer files as a training writes them, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgeswarm.plan import Plan, Stage
from edgeswarm.snapshot import LayerState, write_layer_file
from edgeswarm_coordinator.events import EvaluationDone, RoundDone, RoundParts
from edgeswarm_coordinator.manifest import Manifest

PLAN = Plan(
    planner="asteroid",
    micro_batch=4,
    micro_batches=3,
    stages=(Stage(0, 1, {"nano-1-000001": 4}, 3), Stage(1, 2, {"nano-2-000002": 4}, 1)),
)
LAYERS = 2


def manifest(round_number: int, **more: Any) -> Manifest:
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "seed": 2**62,
        "batch_size": 12,
        "drop_last": False,
        "epochs": 4,
        "dataset_length": 50,
        "bundle_sha256": "ab" * 32,
        "wire_dtype": "",
        "layers": LAYERS,
        "plan": PLAN,
    }
    return Manifest(round=round_number, **{**fields, **more})


def evaluation(round_number: int, *, best: bool) -> EvaluationDone:
    return EvaluationDone(round_number, 0, {"loss": 1.0 / round_number}, 7, 0.5, best)


def rounds(first: int, end: int) -> list[RoundDone]:
    parts = RoundParts(seconds=0.5, forward=0.2, waiting={"samples": 0.3}, samples=12, sent_bytes=7)
    return [
        RoundDone(
            round=number,
            rounds=20,
            epoch=number // 5,
            loss=1.0 / (1 + number),
            samples=12,
            seconds=0.5,
            samples_per_second=0.0,
            seconds_left=None,
            stage_use=(0.4, 0.5),
            parts={"nano-1-000001": parts, "nano-2-000002": parts},
            gradient_norm=0.1 if number % 2 else None,
        )
        for number in range(first, end)
    ]


def write_layers(folder: Path, round_number: int, *, elements: int = 6) -> None:
    """Two layers whose weights are the round's number."""
    for layer in range(LAYERS):
        weights = {f"w{layer}": torch.full((elements,), float(round_number))}
        write_layer_file(folder, layer, LayerState(round_number, weights))
