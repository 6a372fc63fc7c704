"""RunRecord: what is known of one `edgeswarm train`, while it runs and after. Pure data, to and from JSON.

Whoever asks `edgeswarm status` is another process, later: what it knows of a training is the training's record, and
whether the process that wrote it still lives.

    record has an end    process lives     it is
    no                   yes               running
    no                   no                lost: killed, or the machine went down; nobody could write the end
    yes                  -                 done, stopped or failed, by its exit code
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm.json_fields import Fields

FORMAT = "edgeswarm-run/2"


class RunState(enum.Enum):
    """How a training stands; the value is the word for it."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True)
class ProcessName:
    """One process, told apart from a later one that got its number. began: its start as the kernel counts it, and the boot."""

    pid: int
    began: str


@dataclass(frozen=True)
class LastEvaluation:
    """The newest evaluation. epoch: from 0. metrics: without those that are no number."""

    epoch: int
    metrics: Mapping[str, float]
    best: bool


@dataclass(frozen=True)
class RunRecord:
    """One training. Times are seconds since 1970.

    name: of the job. host: the machine's name, for a person; machine: what it is known by (processes.py). job_file, folder:
    absolute; folder is where the result goes. steps: what goes on now. devices: node ids. round: how many rounds are done, of
    `rounds`. epoch: of the newest round, from 0; loss: its loss. checkpoint_round: rounds that the newest checkpoint holds.
    detached: it runs without a terminal. exit_code, error: of its end; error as EdgeswarmError.to_json makes it.
    """

    job_id: str
    name: str
    job_file: str
    folder: str
    process: ProcessName
    host: str
    machine: str
    started: float
    updated: float
    detached: bool = False
    steps: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    round: int = 0
    rounds: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    evaluation: LastEvaluation | None = None
    checkpoint_round: int | None = None
    ended: float | None = None
    exit_code: int | None = None
    error: Mapping[str, str] = field(default_factory=dict)

    @property
    def failure(self) -> EdgeswarmError | None:
        """Why it ended, where it did not end well."""
        return EdgeswarmError.from_json(dict(self.error)) if self.error else None

    def state(self, *, alive: bool) -> RunState:
        """alive: whether the record's process still runs."""
        if self.ended is None:
            return RunState.RUNNING if alive else RunState.LOST
        if self.exit_code == ExitCode.DONE:
            return RunState.DONE
        return RunState.STOPPED if self.exit_code == ExitCode.INTERRUPTED else RunState.FAILED

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "steps": list(self.steps), "devices": list(self.devices)}

    @classmethod
    def from_json(cls, document: object, *, where: str) -> RunRecord:
        """Raises EdgeswarmError (CONFIG) that names the file, `where`, and the field."""

        def invalid(problem: str) -> EdgeswarmError:
            return EdgeswarmError(
                ErrorCode.CONFIG,
                f"{where} is no record of a training: {problem}.",
                "Remove its folder; a training that runs goes on without it.",
            )

        fields = Fields.of(document, invalid, what="a record")
        fields.expect_format(FORMAT)
        process = fields.section("process")
        evaluation = fields.optional_section("evaluation")
        error = fields.section("error")
        return cls(
            job_id=fields.text("job_id"),
            name=fields.text("name"),
            job_file=fields.text("job_file"),
            folder=fields.text("folder"),
            process=ProcessName(process.integer("pid", minimum=1), process.text("began")),
            host=fields.text("host"),
            machine=fields.text("machine"),
            started=fields.number("started"),
            updated=fields.number("updated"),
            detached=fields.flag("detached"),
            steps=fields.texts("steps"),
            devices=fields.texts("devices"),
            round=fields.integer("round", minimum=0),
            rounds=fields.optional_integer("rounds", minimum=0),
            epoch=fields.optional_integer("epoch", minimum=0),
            loss=fields.optional_number("loss"),
            samples_per_second=fields.optional_number("samples_per_second"),
            seconds_left=fields.optional_number("seconds_left"),
            evaluation=None if evaluation is None else _evaluation(evaluation),
            checkpoint_round=fields.optional_integer("checkpoint_round", minimum=0),
            ended=fields.optional_number("ended"),
            exit_code=fields.optional_integer("exit_code", minimum=0),
            error={name: error.text(name) for name in error.names()},
        )


def _evaluation(fields: Fields) -> LastEvaluation:
    metrics = fields.section("metrics")
    return LastEvaluation(
        epoch=fields.integer("epoch", minimum=0),
        metrics={name: metrics.number(name) for name in metrics.names()},
        best=fields.flag("best"),
    )


def number_or_none(value: float | None) -> float | None:
    """JSON has neither NaN nor infinities."""
    return value if value is not None and math.isfinite(value) else None
