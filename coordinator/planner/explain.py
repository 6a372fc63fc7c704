"""A plan in words and figures: who gets which layers and how many samples, memory, expected seconds, what limits it.

`explain` gives rows for a table of the command line; `Explanation.text` is the same as plain text. No colours, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeswarm.plan import Plan, Prediction, Stage
from edgeswarm.profile import PlanningInstance

from .cost_model import passes_of_share
from .prediction import predict
from .units import readable_bytes, readable_error, readable_seconds

HEADINGS = ("stage", "layers", "device", "samples", "memory", "compute per micro-batch")


@dataclass(frozen=True)
class DeviceRow:
    """One device of a stage. memory and budget in bytes; compute_seconds: forward and backward of one micro-batch.

    passes: in which it computes its samples.
    """

    stage: int
    layers: str
    device: str
    samples: int
    passes: int
    memory_bytes: int
    budget_bytes: int
    compute_seconds: float

    @property
    def over_budget(self) -> bool:
        return self.memory_bytes > self.budget_bytes

    def cells(self) -> tuple[str, ...]:
        """The row's texts, in the order of HEADINGS."""
        budget = f"{readable_bytes(self.memory_bytes)} of {readable_bytes(self.budget_bytes)}"
        return (
            str(self.stage),
            self.layers,
            self.device,
            str(self.samples) if self.passes == 1 else f"{self.samples} in {self.passes} passes",
            f"{budget} (too much)" if self.over_budget else budget,
            readable_seconds(self.compute_seconds),
        )


@dataclass(frozen=True)
class Explanation:
    """headline: the plan in one sentence. rows: the devices, stage by stage. expectation: the round, how sure that is
    where the plan's prediction says so, and what limits it.

    stages: one sentence for each stage. backups: who is to hold whose backup. notes: another schedule than 1F1B, idle devices.
    """

    headline: str
    rows: tuple[DeviceRow, ...]
    stages: tuple[str, ...]
    backups: str
    expectation: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it as plain text, the rows as a table of aligned columns."""
        table = [HEADINGS, *(row.cells() for row in self.rows)]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
        return "\n".join([self.headline, *(f"  {line.rstrip()}" for line in lines), *self.sentences])

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that stands behind the table, in its order."""
        return (*self.stages, self.backups, *self.expectation, *self.notes)


def explain(plan: Plan, instance: PlanningInstance) -> Explanation:
    """Explain any plan of an instance; what it predicts is worked out anew where the plan carries none.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    instance.validate_plan(plan)
    predicted = plan.predicted or predict(instance, plan)
    return Explanation(
        headline=_headline(plan),
        rows=tuple(
            _device_row(instance, predicted, index, stage, device)
            for index, stage in enumerate(plan.stages)
            for device in stage.devices
        ),
        stages=tuple(_stage_sentence(plan, predicted, index) for index in range(len(plan.stages))),
        backups=backup_sentence(plan),
        expectation=_expectation(predicted),
        notes=_notes(plan),
    )


def layer_text(instance: PlanningInstance, first_layer: int, end_layer: int) -> str:
    """The layers of a stage: "3-17 (conv2 ... fc)", or "3 (conv2)" for one."""
    layers = instance.model.layers
    if end_layer - first_layer == 1:
        return f"{first_layer} ({layers[first_layer].name})"
    return f"{first_layer}-{end_layer - 1} ({layers[first_layer].name} ... {layers[end_layer - 1].name})"


def backup_sentence(plan: Plan) -> str:
    """Where a second copy of each stage's state is to be: the replicas of a stage have it already."""
    if not plan.backup and not any(stage.replicated for stage in plan.stages):
        return "Planned backups: none."
    parts = []
    for index, stage in enumerate(plan.stages):
        holder = plan.backup.get(index)
        if holder is not None:
            parts.append(f"of stage {index} ({', '.join(stage.devices)}) on {holder}")
        else:
            parts.append(f"of stage {index} on its own replicas" if stage.replicated else f"of stage {index} nowhere")
    return f"Planned backups, where nothing is kept yet: {', '.join(parts)}."


def _headline(plan: Plan) -> str:
    stages = _count(len(plan.stages), "stage")
    size = _count(plan.micro_batch, "sample")
    last = "" if plan.last_micro_batch is None else f", the last one of {plan.last_micro_batch}"
    return (
        f"{stages} on {_count(len(plan.devices), 'device')} (planner {plan.planner}): "
        f"{plan.mini_batch} samples a round in {_count(plan.micro_batches, 'micro-batch', 'micro-batches')} of {size}{last}."
    )


def _device_row(instance: PlanningInstance, predicted: Prediction, index: int, stage: Stage, device: str) -> DeviceRow:
    profile = instance.profile_of(device)
    layers = (stage.first_layer, stage.end_layer)
    sizes = passes_of_share(stage, device)
    return DeviceRow(
        stage=index,
        layers=layer_text(instance, *layers),
        device=device,
        samples=stage.shares[device],
        passes=len(sizes),
        memory_bytes=predicted.memory_bytes.get(device, 0),
        budget_bytes=instance.devices[instance.index_of[device]].memory_bytes,
        compute_seconds=sum(profile.forward(size, *layers) + profile.backward(size, *layers) for size in sizes),
    )


def _stage_sentence(plan: Plan, predicted: Prediction, index: int) -> str:
    stage, costs = plan.stages[index], predicted.stages[index]
    parts = [
        f"{readable_seconds(costs.forward_seconds)} forward",
        f"{readable_seconds(costs.backward_seconds)} backward",
    ]
    if index + 1 < len(plan.stages):
        parts.append(f"{readable_seconds(costs.send_seconds)} to send on")
    sentence = f"Stage {index}: a micro-batch takes {', '.join(parts)}"
    sentence += f"; {stage.in_flight} in flight"
    if costs.all_reduce_seconds > 0:
        sentence += f"; the all-reduce takes {readable_seconds(costs.all_reduce_seconds)} a round"
    return sentence + "."


def _expectation(predicted: Prediction) -> tuple[str, ...]:
    limits = f"What limits the round: {predicted.dominant or 'not known'}."
    speed = f"{predicted.samples_per_second:.1f} samples/s"
    seconds = f"Expected: {readable_seconds(predicted.round_seconds)} a round"
    if predicted.relative_error is None:
        return f"{seconds}, {speed}.", limits
    part = readable_error(predicted.relative_error)
    how = f"{part}: by the scatter of measured compute times alone, one standard error; what the network takes is as measured."
    return f"{seconds} ({part}), {speed}.", how, limits


def _notes(plan: Plan) -> tuple[str, ...]:
    apart = (
        f"Gradients of weights are computed apart from the rest of a backward, in gaps (schedule {plan.schedule}).",
    )
    idle = (f"{idle.name} stays idle: {idle.reason or 'no reason given'}." for idle in plan.idle)
    return (*(apart if plan.has_weights_apart else ()), *idle)


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
