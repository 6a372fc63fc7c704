"""What a checkpoint says about itself: the manifest that lies beside its layers, as JSON. Pure."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.json_fields import Fields
from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder

from .evaluations import evaluation_from_json, evaluation_to_json
from .events import EvaluationDone

MANIFEST_FORMAT = "edgeswarm-checkpoint/1"
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """A training as it was after `round` rounds, and what has to be the same for it to go on.

    job_id: of the command that wrote it. layers: how many the model is cut into. wire_dtype: empty where nothing is narrowed.
    rounds_bytes: what of the file with the rounds belongs to it. rounds_seconds: what its rounds took, without pauses.
    """

    job_id: str
    round: int
    seed: int
    batch_size: int
    drop_last: bool
    epochs: int
    dataset_length: int
    bundle_sha256: str
    wire_dtype: str
    layers: int
    plan: Plan
    evaluations: tuple[EvaluationDone, ...] = ()
    rounds_bytes: int = 0
    rounds_seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """Of the whole job."""
        order = SampleOrder(self.dataset_length, self.batch_size, self.seed, self.drop_last)
        return order.rounds_per_epoch * self.epochs

    @property
    def best(self) -> EvaluationDone | None:
        return next((evaluation for evaluation in reversed(self.evaluations) if evaluation.best), None)

    def to_json(self) -> dict[str, Any]:
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            "format": MANIFEST_FORMAT,
            **document,
            "plan": self.plan.to_json(),
            "evaluations": [evaluation_to_json(evaluation) for evaluation in self.evaluations],
        }


def manifest_from_text(text: str, path: Path) -> Manifest:
    """The manifest in the file's text. Raises EdgeswarmError (CHECKPOINT) naming the file and what is wrong in it."""

    def invalid(problem: str) -> EdgeswarmError:
        return unreadable(path, problem)

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"it is no JSON: {error}") from error
    fields = Fields.of(document, invalid, what="a manifest")
    fields.expect_format(MANIFEST_FORMAT)
    try:
        plan = Plan.from_json(fields.section("plan").values)
    except EdgeswarmError as error:
        raise invalid(error.message) from error
    return Manifest(
        job_id=fields.text("job_id"),
        round=fields.integer("round", minimum=1),
        seed=fields.integer("seed", minimum=0),
        batch_size=fields.integer("batch_size", minimum=1),
        drop_last=fields.flag("drop_last"),
        epochs=fields.integer("epochs", minimum=1),
        dataset_length=fields.integer("dataset_length", minimum=1),
        bundle_sha256=fields.text("bundle_sha256"),
        wire_dtype=fields.text("wire_dtype"),
        layers=fields.integer("layers", minimum=1),
        plan=plan,
        evaluations=fields.each("evaluations", evaluation_from_json),
        rounds_bytes=fields.integer("rounds_bytes", minimum=0),
        rounds_seconds=fields.number("rounds_seconds", minimum=0.0),
    )


def unreadable(path: Path, problem: str) -> EdgeswarmError:
    """The error for a file of a checkpoint that can't be used: the manifest, the rounds, or a layer in a folder of its round."""
    folder = path.parent.parent if path.suffix == ".safetensors" else path.parent
    return EdgeswarmError(
        ErrorCode.CHECKPOINT,
        f"The checkpoint can't be read: {path}: {problem}.",
        f"Move {folder} away and train from the beginning.",
    )
