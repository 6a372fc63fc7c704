"""What a training tells whoever watches it: the stream of events that a terminal, a log or a test listens to. Pure data.

A training, seen from here (steps overlap, so a `StepDone` doesn't always follow its own `StepStarted`):

    JobBegins  StepStarted/StepDone ...  DevicesFound  ModelReady  ProfileProgress ...  PlanMade
               RoundDone RoundDone ...  TrainingDone
    After rounds that end an epoch: EvaluationDone, BestKept, CheckpointWritten. After some rounds: SharesMoved.
    While a step runs, what it is at: TransferProgress, WorkerDoes. Warning may come at any time.
    A failure is no event: it is the EdgeswarmError that `train` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .device import Device

# The steps of a training in the order in which they begin; names as StepStarted and StepDone carry them.
LOAD_JOB = "load job"
FIND_DEVICES = "find devices"
RESERVE_DEVICES = "reserve devices"
OPEN_DATA = "open data"
BUILD_MODEL = "build model"
TRY_JOB = "try job"  # its model, loss, optimizer and metrics on a few samples
EXPORT_MODEL = "export model"
EXPORT_EVALUATION = "export for evaluation"
WRITE_LAYERS = "write layers"
START_DATA_SERVICE = "start data service"
SEND_BUNDLE = "send job files"
PROFILE_LAYERS = "profile layers"
MEASURE_LINKS = "measure links"
PLAN = "plan"
START_WORKERS = "start workers"  # what of it the steps before did not hide
PREPARE_WORKERS = "prepare workers"
TRAIN = "train"
READ_CHECKPOINT = "read checkpoint"
GATHER = "gather layers"
WRITE_RESULT = "write result"


@dataclass(frozen=True)
class JobBegins:
    """The first event of a training: the id that its devices know it by."""

    job_id: str


@dataclass(frozen=True)
class StepStarted:
    """A step of the training begins. detail: for a person, may be empty."""

    step: str
    detail: str = ""


@dataclass(frozen=True)
class StepDone:
    """A step is done; seconds: its own wall-clock time (steps overlap, so they don't add up to the whole)."""

    step: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Warning:
    """Something to know that stops nothing."""

    message: str


@dataclass(frozen=True)
class DevicesFound:
    """The devices that answered and may be used. how: where they were found ("mdns" when at least one came from there)."""

    devices: tuple[Device, ...]
    how: Literal["mdns", "addresses", "remembered"]


@dataclass(frozen=True)
class ModelReady:
    """The model is exported. layer_names: in order. parameter_bytes: of the whole model. dtype: "float32", ..."""

    layer_names: tuple[str, ...]
    parameter_bytes: int
    dtype: str


@dataclass(frozen=True)
class ProfileProgress:
    """`done` of `total` measurements are there. detail: what was measured last."""

    done: int
    total: int
    detail: str = ""


@dataclass(frozen=True)
class TransferProgress:
    """`done_bytes` of `total_bytes` are on their way to a device. what: "job files"."""

    what: str
    device: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class WorkerDoes:
    """What a device's worker says that it does while it gets ready; told when it changes."""

    device: str
    action: str


@dataclass(frozen=True)
class PlanMade:
    """The plan in force. instance: what the planner was told; None for a plan written by hand, for which nothing is measured."""

    plan: Plan
    instance: PlanningInstance | None
    layer_names: tuple[str, ...]


@dataclass(frozen=True)
class SharesMoved:
    """From this round on the plan has other shares, by the speed that the devices showed.

    before: the plan until then. gain: the part of a round that this is expected to save.
    """

    round: int
    before: Plan
    plan: Plan
    gain: float


@dataclass(frozen=True)
class RoundParts:
    """Where one worker's time of one round went, in seconds; `add_up` of the parts is `seconds`.

    waiting: by what for, "activations from nano-1". all_reduce: what of it computing did not hide. cpu_seconds: of the
    worker's processor, whatever the thread; model_cpu_seconds: of these what the model itself took. left_out_bytes: zeros that
    were to be sent and weren't, for the other side puts them back.
    """

    seconds: float
    forward: float = 0.0
    backward: float = 0.0
    send: float = 0.0
    waiting: Mapping[str, float] = field(default_factory=dict)
    all_reduce: float = 0.0
    step: float = 0.0
    other: float = 0.0
    samples: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    peak_memory_bytes: int = 0
    cpu_seconds: float = 0.0
    fetched_sample_bytes: int = 0
    model_cpu_seconds: float = 0.0
    left_out_bytes: int = 0

    @property
    def computing(self) -> float:
        """Forward, backward and the optimizer's step."""
        return self.forward + self.backward + self.step

    @property
    def use(self) -> float:
        """The fraction of the round that the device computes."""
        return min(1.0, self.computing / self.seconds) if self.seconds > 0 else 0.0

    @property
    def add_up(self) -> float:
        return (
            self.forward
            + self.backward
            + self.send
            + sum(self.waiting.values())
            + self.all_reduce
            + self.step
            + self.other
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "forward_seconds": self.forward,
            "backward_seconds": self.backward,
            "send_seconds": self.send,
            "waiting_seconds": dict(self.waiting),
            "all_reduce_seconds": self.all_reduce,
            "step_seconds": self.step,
            "other_seconds": self.other,
            "samples": self.samples,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "cpu_seconds": self.cpu_seconds,
            "fetched_sample_bytes": self.fetched_sample_bytes,
            "model_cpu_seconds": self.model_cpu_seconds,
            "left_out_bytes": self.left_out_bytes,
        }


@dataclass(frozen=True)
class RoundDone:
    """Every device has finished this round.

    round: from 0, of `rounds` in all. epoch: of the data, from 0. loss: mean over the mini-batch's samples (or counts).
    seconds: of the slowest worker. samples_per_second: over the last rounds. seconds_left: None until it can be said.
    stage_use: by stage, the fraction of the round that it computes, mean of its replicas. parts: by node id.
    gradient_norm: where the job clips. learning_rate_factor: where it has a schedule.
    """

    round: int
    rounds: int
    epoch: int
    loss: float
    samples: int
    seconds: float
    samples_per_second: float
    seconds_left: float | None
    stage_use: tuple[float, ...]
    parts: Mapping[str, RoundParts]
    gradient_norm: float | None = None
    learning_rate_factor: float | None = None


@dataclass(frozen=True)
class EvaluationDone:
    """The evaluation set went through the model after `round` rounds.

    epoch: of the data, from 0, that ended then. metrics: "loss" and the job's own. best: better than all before, by the
    job's watched metric. seconds: of the slowest worker.
    """

    round: int
    epoch: int
    metrics: Mapping[str, float]
    samples: int
    seconds: float
    best: bool


@dataclass(frozen=True)
class BestKept:
    """The layers of the best evaluation so far, after `round` rounds, are on this machine's disk. bytes: of all of them. seconds:
    for which the devices waited.
    """

    round: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class CheckpointWritten:
    """A training that ends from now on can be resumed after `round` rounds."""

    round: int
    folder: Path
    bytes: int
    seconds: float


@dataclass(frozen=True)
class TrainingDone:
    """The result is written. rounds_seconds: from Start to the last round's end. seconds: of the whole `train`.

    stopped_early: evaluations got no better. best: the best evaluation, where there was any.
    """

    folder: Path
    rounds: int
    loss: float
    rounds_seconds: float
    seconds: float
    stopped_early: bool = False
    best: EvaluationDone | None = None


Event = (
    JobBegins
    | StepStarted
    | StepDone
    | Warning
    | DevicesFound
    | ModelReady
    | ProfileProgress
    | TransferProgress
    | WorkerDoes
    | PlanMade
    | SharesMoved
    | RoundDone
    | EvaluationDone
    | BestKept
    | CheckpointWritten
    | TrainingDone
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of whoever doesn't listen."""
