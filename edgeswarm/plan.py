"""Plan: who computes which layers, and how many samples of each micro-batch. Pure data; in JSON `edgeswarm-plan/1`.

A round of a plan with two stages, the first one replicated over two devices (micro_batch 8, shares 5 and 3):

    samples of a micro-batch    0   1   2   3   4 | 5   6   7
    stage 0, layers [0, 4)      --- device a ---- | - device b -
    stage 1, layers [4, 9)      ----------- device c -----------

The order of the replicas is the order of `Stage.shares`: the first replica takes the first samples.

Where a stage is the whole model, a replica may compute its share in passes, forward and backward of one after the other. What a
pass saved is free for the next one, and each device takes as many samples at once as suit it (shares 6 and 2, a's in 3):

    device a    f f b b  f f b b  f f b b
    device b    f  f  b  b
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import EdgeswarmError, ErrorCode
from .json_fields import Fields
from .samples import micro_batch_sizes, split_micro_batch
from .schedule.policies import ONE_FORWARD_ONE_BACKWARD, SCHEDULES, has_weights_apart

PLAN_FORMAT = "edgeswarm-plan/1"


@dataclass(frozen=True)
class Stage:
    """Consecutive layers and the group of devices that holds them.

    first_layer, end_layer: the layers [first_layer, end_layer).
    shares: samples of each micro-batch by device; its order is the order of the replicas and of their sample intervals.
    in_flight: K, how many micro-batches may be forward and not yet backward, gradients of weights included.
    owners: the replicas that add up gradients for the group, a chunk each (chunk_owners.py); all of them where none is named.
    passes: in how many passes a replica computes its share of a micro-batch, by device; 1 where it isn't named. Of a smaller
    micro-batch it computes no more at once, in fewer passes.
    Raises ValueError for an empty run of layers, an empty group, a share below 1, an in_flight below 1, a strange owner, or
    passes of a device without a share, below 1 or above its share.
    """

    first_layer: int
    end_layer: int
    shares: Mapping[str, int]
    in_flight: int
    owners: tuple[str, ...] = ()
    passes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", dict(self.shares))
        object.__setattr__(self, "passes", dict(self.passes))
        object.__setattr__(self, "owners", tuple(self.owners))
        if not 0 <= self.first_layer < self.end_layer:
            raise ValueError(f"layers [{self.first_layer}, {self.end_layer}) hold no layer")
        if not self.shares:
            raise ValueError("shares names no device")
        for device, share in self.shares.items():
            if share < 1:
                raise ValueError(f"the share of {device} is {share}; a device of a stage takes at least 1 sample")
        if self.in_flight < 1:
            raise ValueError(f"in_flight is {self.in_flight}; at least 1 micro-batch is in flight")
        strangers = [owner for owner in self.owners if owner not in self.shares]
        if strangers:
            raise ValueError(f"owners names {strangers[0]}, which has no share of the stage")
        if len(set(self.owners)) < len(self.owners):
            raise ValueError("owners names a device twice")
        for device, passes in self.passes.items():
            if device not in self.shares:
                raise ValueError(f"passes names {device}, which has no share of the stage")
            if not 1 <= passes <= self.shares[device]:
                raise ValueError(
                    f"passes of {device} is {passes}; it must be from 1 to its share, {self.shares[device]}"
                )

    @property
    def devices(self) -> tuple[str, ...]:
        """The group, in replica order."""
        return tuple(self.shares)

    @property
    def chunk_owners(self) -> tuple[str, ...]:
        """Those named, or else all replicas."""
        return self.owners or self.devices

    def passes_of(self, device: str) -> int:
        return self.passes.get(device, 1)

    def at_once(self, device: str) -> int:
        """Samples that a replica has in one forward and backward, at most."""
        return -(-self.shares[device] // self.passes_of(device))

    @property
    def replicated(self) -> bool:
        return len(self.shares) > 1

    def all_reduce_peers(self, device: str) -> tuple[str, ...]:
        """The replicas with which one of them exchanges chunks of gradients: an owner with all, the others with the owners."""
        owners = self.chunk_owners
        if len(self.shares) == 2 or device in owners:
            return tuple(other for other in self.shares if other != device)
        return owners

    @property
    def samples(self) -> int:
        """The sum of the shares: samples of a full micro-batch."""
        return sum(self.shares.values())


@dataclass(frozen=True)
class StagePrediction:
    """Expected seconds of a stage: a micro-batch forward, backward and sent to the next stage; its all-reduce once."""

    forward_seconds: float
    backward_seconds: float
    all_reduce_seconds: float
    send_seconds: float


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to do.

    round_seconds: one mini-batch, up to the optimizer step. samples_per_second: mini-batch size over round_seconds.
    memory_bytes: peak by device. stages: in order. dominant: what limits the round, in words.
    relative_error: by which part the round's seconds may be off, one standard error; None where that is not known.
    """

    round_seconds: float
    samples_per_second: float
    memory_bytes: Mapping[str, int]
    stages: tuple[StagePrediction, ...]
    dominant: str = ""
    relative_error: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_bytes", dict(self.memory_bytes))
        object.__setattr__(self, "stages", tuple(self.stages))


@dataclass(frozen=True)
class IdleDevice:
    """A device that the plan leaves out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """A hybrid pipeline: stages of layers, each over a group of devices.

    planner: who made it. micro_batch: samples of a full micro-batch.
    micro_batches: how many a round has, a smaller last one included. last_micro_batch: samples of that one, else None.
    backup: stage index to the device that holds its backup; a replicated stage needs none.
    Raises ValueError where the parts contradict each other.
    """

    planner: str
    micro_batch: int
    micro_batches: int
    stages: tuple[Stage, ...]
    last_micro_batch: int | None = None
    schedule: str = ONE_FORWARD_ONE_BACKWARD
    idle: tuple[IdleDevice, ...] = ()
    backup: Mapping[int, str] = field(default_factory=dict)
    predicted: Prediction | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "idle", tuple(self.idle))
        object.__setattr__(self, "backup", dict(self.backup))
        problem = next(self._problems(), None)
        if problem is not None:
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        if self.micro_batch < 1:
            yield f"micro_batch is {self.micro_batch}; it must be at least 1"
        if self.micro_batches < 1:
            yield f"micro_batches is {self.micro_batches}; it must be at least 1"
        if self.last_micro_batch is not None and not 0 < self.last_micro_batch < self.micro_batch:
            yield f"last_micro_batch is {self.last_micro_batch}; it must be from 1 to {self.micro_batch - 1}"
        if self.schedule not in SCHEDULES:
            yield f"schedule is {self.schedule!r}; known: {', '.join(SCHEDULES)}"
        if not self.stages:
            yield "stages is empty; a plan has at least one stage"
        if len(self.stages) > 1 and any(stage.passes for stage in self.stages):
            yield "passes are for a plan of one stage; between stages micro-batches do the same"
        if self.has_weights_apart and any(stage.passes for stage in self.stages):
            yield f"passes are for the schedule {ONE_FORWARD_ONE_BACKWARD}; with {self.schedule} there are none"
        next_layer = 0
        holder: dict[str, int] = {}
        for index, stage in enumerate(self.stages):
            if stage.first_layer != next_layer:
                yield (
                    f"stages[{index}].first_layer is {stage.first_layer}, expected {next_layer}: "
                    "the stages must cover every layer once, in order"
                )
            next_layer = stage.end_layer
            if stage.samples != self.micro_batch:
                yield f"stages[{index}].shares add up to {stage.samples}, but micro_batch is {self.micro_batch}"
            for device in stage.shares:
                if device in holder:
                    yield f"stages[{index}].shares names {device}, which is in stage {holder[device]} already"
                holder[device] = index
        for idle in self.idle:
            if idle.name in holder:
                yield f"idle names {idle.name}, which is in stage {holder[idle.name]}"
        for index, device in self.backup.items():
            if not 0 <= index < len(self.stages):
                yield f"backup names stage {index}; the plan has stages 0 to {len(self.stages) - 1}"
            elif device not in holder:
                yield f"backup of stage {index} is {device}, which holds no stage"
        if self.predicted is not None and len(self.predicted.stages) != len(self.stages):
            yield f"predicted.stages has {len(self.predicted.stages)} entries for {len(self.stages)} stages"

    @property
    def has_weights_apart(self) -> bool:
        """Whether its schedule computes gradients of weights apart from the rest of a backward."""
        return has_weights_apart(self.schedule)

    def held_micro_batches(self, index: int) -> tuple[int, int]:
        """What a replica of this stage holds at most: micro-batches in full, and beside them such of which gradients of weights
        alone are left.

        In the last stage nobody has to be waited for between a forward and its backward, which is run at once.
        """
        in_flight = min(self.stages[index].in_flight, self.micro_batches)
        in_full = 1 if self.has_weights_apart and index == len(self.stages) - 1 else in_flight
        return in_full, in_flight - in_full

    @property
    def mini_batch(self) -> int:
        """Samples of one optimizer step."""
        last = self.micro_batch if self.last_micro_batch is None else self.last_micro_batch
        return self.micro_batch * (self.micro_batches - 1) + last

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that computes, in stage and replica order."""
        return tuple(device for stage in self.stages for device in stage.shares)

    @property
    def layer_count(self) -> int:
        return self.stages[-1].end_layer

    def stage_of(self, device: str) -> int:
        """Index of the stage that a device belongs to; KeyError where it computes nothing."""
        for index, stage in enumerate(self.stages):
            if device in stage.shares:
                return index
        raise KeyError(device)

    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each micro-batch of a full round, in order."""
        last = self.micro_batch if self.last_micro_batch is None else self.last_micro_batch
        return (self.micro_batch,) * (self.micro_batches - 1) + (last,)

    def validate_for(
        self,
        *,
        layer_count: int,
        mini_batch: int,
        devices: Sequence[str],
        least_batch: Sequence[int] | None = None,
    ) -> None:
        """Check that this plan suits a model, a batch size and the devices that are there.

        least_batch: by layer, the fewest samples that it can take at once.
        Raises EdgeswarmError(PLAN_INVALID) with the first thing that does not fit.
        """
        if self.layer_count != layer_count:
            raise _invalid(
                f"The plan's stages end at layer {self.layer_count}, but the model has {layer_count} layers.",
                "Set the last stage's end_layer to the number of layers that `edgeswarm plan` lists for this model.",
            )
        if self.mini_batch != mini_batch:
            raise _invalid(
                f"The plan's round has {self.mini_batch} samples in {self.micro_batches} micro-batches of up to "
                f"{self.micro_batch}, but the batch size is {mini_batch}.",
                "Change micro_batch, micro_batches or last_micro_batch so that a round has batch_size samples.",
            )
        missing = [device for device in self.devices if device not in devices]
        if missing:
            raise _invalid(
                f"The plan uses {', '.join(missing)}, but the devices are {', '.join(devices) or 'none'}.",
                "Start the agent there, or take the device out of the plan.",
            )
        if least_batch is None:
            return
        problem = self.too_few_samples(self.mini_batch, least_batch)
        if problem:
            raise _invalid(f"{problem}.", "Give it more samples, or none.")

    def too_few_samples(self, round_samples: int, least_batch: Sequence[int]) -> str:
        """Which replica would take fewer samples than a layer of its stage needs, in a round of so many; empty for none.

        least_batch: by layer. A round may have fewer samples than the mini-batch: the last one of an epoch.
        """
        # As the workers split: by the whole model's least batch, so that neighbours know each other's intervals.
        of_model = max(least_batch)
        if of_model == 1:
            return ""
        sizes = micro_batch_sizes(round_samples, micro_batch=self.micro_batch, least_batch=of_model)
        for index, stage in enumerate(self.stages):
            least = max(least_batch[stage.first_layer : stage.end_layer])
            for size in sorted(set(sizes), reverse=True):
                for device, interval in split_micro_batch(stage.shares, size, least_batch=of_model).items():
                    if 0 < interval.size < least:
                        return (
                            f"In stage {index} {device} takes {interval.size} of a micro-batch's {size} samples, "
                            f"but a layer of that stage needs at least {least} at once"
                        )
        return ""

    def to_json(self) -> dict[str, Any]:
        """The plan as one `edgeswarm-plan/1` object of JSON values."""
        document: dict[str, Any] = {
            "format": PLAN_FORMAT,
            "planner": self.planner,
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            "stages": [
                {
                    "first_layer": stage.first_layer,
                    "end_layer": stage.end_layer,
                    "shares": dict(stage.shares),
                    "in_flight": stage.in_flight,
                    **({"owners": list(stage.owners)} if stage.owners else {}),
                    **({"passes": dict(stage.passes)} if stage.passes else {}),
                }
                for stage in self.stages
            ],
            "idle": [{"name": idle.name, "reason": idle.reason} for idle in self.idle],
            "backup": {str(index): device for index, device in sorted(self.backup.items())},
        }
        if self.last_micro_batch is not None:
            document["last_micro_batch"] = self.last_micro_batch
        if self.predicted is not None:
            document["predicted"] = {**_prediction_to_json(self.predicted), "of": _fingerprint(document)}
        return document

    @classmethod
    def from_json(cls, document: object, *, may_be_edited: bool = False) -> Plan:
        """Read a plan, one of a planner or one written by hand.

        may_be_edited: what is told beside the stages (idle, backup, predicted) is left out where it is of other ones.

        Needed are micro_batch, micro_batches and stages; where a stage p of P leaves in_flight out, it is
        max(1, 2(P-p)-1).
        Keys that are not known are passed over. Raises EdgeswarmError(PLAN_INVALID) naming the field that is wrong.
        """
        fields = Fields.of(document, _invalid_field, what="a plan")
        fields.expect_format(PLAN_FORMAT, optional=True)
        stage_fields = list(fields.sections("stages"))
        stages = tuple(
            _stage_from_json(entry, default_in_flight=max(1, 2 * (len(stage_fields) - index) - 1))
            for index, entry in enumerate(stage_fields)
        )
        idle = tuple(
            IdleDevice(entry.text("name"), entry.text("reason", default=""))
            for entry in fields.sections("idle", optional=True)
        )
        predicted = fields.optional_section("predicted")
        backup = _backup_from_json(fields.optional_section("backup"))
        if may_be_edited:
            placed = {device for stage in stages for device in stage.shares}
            idle = tuple(device for device in idle if device.name not in placed)
            backup = {
                index: device
                for index, device in backup.items()
                if index < len(stages) and device in placed - set(stages[index].shares)
            }
        try:
            plan = cls(
                planner=fields.text("planner", default="by hand"),
                micro_batch=fields.integer("micro_batch", minimum=1),
                micro_batches=fields.integer("micro_batches", minimum=1),
                last_micro_batch=fields.optional_integer("last_micro_batch", minimum=1),
                schedule=fields.text("schedule", default=ONE_FORWARD_ONE_BACKWARD),
                stages=stages,
                idle=idle,
                backup=backup,
            )
            of = "" if predicted is None else predicted.text("of", default="")
            if predicted is None or (may_be_edited and of and of != _fingerprint(plan.to_json())):
                return plan
            return replace(plan, predicted=_prediction_from_json(predicted))
        except ValueError as error:
            raise _invalid_field(str(error)) from None


def _fingerprint(document: Mapping[str, Any]) -> str:
    """Of what devices do by a plan: another one after every change of it. document: as `to_json` makes it."""
    work = [document.get(key) for key in ("micro_batch", "micro_batches", "last_micro_batch", "schedule", "stages")]
    return hashlib.sha256(json.dumps(work).encode()).hexdigest()[:16]


def _invalid(message: str, remedy: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.PLAN_INVALID, message, remedy)


def _invalid_field(problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.PLAN_INVALID,
        f"The plan is not valid: {problem}.",
        "Correct that field, or let `edgeswarm plan --json` write the plan.",
    )


def _stage_from_json(fields: Fields, *, default_in_flight: int) -> Stage:
    shares_fields = fields.section("shares")
    shares = {device: shares_fields.integer(device, minimum=1) for device in shares_fields.names()}
    passes = fields.optional_section("passes")
    in_flight = fields.optional_integer("in_flight", minimum=1)
    try:
        return Stage(
            first_layer=fields.integer("first_layer", minimum=0),
            end_layer=fields.integer("end_layer", minimum=1),
            shares=shares,
            in_flight=default_in_flight if in_flight is None else in_flight,
            owners=fields.texts("owners", optional=True),
            passes={} if passes is None else {device: passes.integer(device, minimum=1) for device in passes.names()},
        )
    except ValueError as error:
        raise fields.error(str(error)) from None


def _backup_from_json(fields: Fields | None) -> dict[int, str]:
    if fields is None:
        return {}
    backup: dict[int, str] = {}
    for key in fields.names():
        if not (key.isascii() and key.isdigit()):
            raise fields.error(f"has the key {key!r}, which is no stage index")
        backup[int(key)] = fields.text(key)
    return backup


def _prediction_to_json(predicted: Prediction) -> dict[str, Any]:
    return {
        "round_seconds": predicted.round_seconds,
        # Infinite of a round that takes no time, which JSON has no number for.
        "samples_per_second": predicted.samples_per_second if math.isfinite(predicted.samples_per_second) else None,
        "memory_bytes": dict(predicted.memory_bytes),
        "stages": [
            {
                "forward_seconds": stage.forward_seconds,
                "backward_seconds": stage.backward_seconds,
                "all_reduce_seconds": stage.all_reduce_seconds,
                "send_seconds": stage.send_seconds,
            }
            for stage in predicted.stages
        ],
        "dominant": predicted.dominant,
        **({} if predicted.relative_error is None else {"relative_error": predicted.relative_error}),
    }


def _prediction_from_json(fields: Fields) -> Prediction:
    memory, speed = fields.optional_section("memory_bytes"), fields.optional_number("samples_per_second", minimum=0)
    return Prediction(
        round_seconds=fields.number("round_seconds", minimum=0),
        samples_per_second=math.inf if speed is None else speed,
        memory_bytes={} if memory is None else {name: memory.integer(name, minimum=0) for name in memory.names()},
        stages=tuple(
            StagePrediction(
                forward_seconds=entry.number("forward_seconds", minimum=0),
                backward_seconds=entry.number("backward_seconds", minimum=0),
                all_reduce_seconds=entry.number("all_reduce_seconds", minimum=0),
                send_seconds=entry.number("send_seconds", minimum=0),
            )
            for entry in fields.sections("stages")
        ),
        dominant=fields.text("dominant", default=""),
        relative_error=fields.optional_number("relative_error", minimum=0),
    )
