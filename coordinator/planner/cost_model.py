"""What a plan costs by Asteroid's formulas (section 3.2): memory of a device, seconds of a step, seconds of a round.

A pipeline of P stages has 2P-1 steps: stage, link, stage, ... Three stages, five micro-batches, links left out
(f forward, b backward, A all-reduce; a column is one unit of time; K_p is 5, 3 and 1):

    stage 0  f0 f1 f2 f3 f4 b0 .  b1 .  b2 .  b3 .  b4 A
    stage 1  .  f0 f1 f2 b0 f3 b1 f4 b2 .  b3 .  b4
    stage 2  .  .  f0 b0 f1 b1 f2 b2 f3 b3 f4 b4
             |-T_w-|------ T_e of stage 2 -------|

The round ends with the step for which waiting T_w, execution T_e and all-reduce T_a together take longest (Eq 4).

Two things are added to the paper. A link has a latency, once a transfer. And a plan may hold fewer than K_p
micro-batches in flight: then a stage takes a new one only when an old one has come back, so its period is at least the
way to the end and back over K. With K_p itself, the number of steps from the stage to the end, that never counts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeswarm.plan import Plan, Prediction, Stage, StagePrediction
from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm.samples import Interval, overlaps, split_in_passes, split_micro_batch

from .passing_memory import PassingMemory, passing_bytes
from .whole_plan_memory import whole_plan_bytes


class StepKind(enum.Enum):
    STAGE = "stage"
    LINK = "link"


@dataclass(frozen=True)
class Step:
    """One step of the pipeline; a link's index is that of the stage before it.

    forward_seconds, backward_seconds: of one micro-batch. all_reduce_seconds: once a round.
    waiting_period: seconds between micro-batches that too few in flight impose; 0 where they impose nothing.
    """

    kind: StepKind
    index: int
    forward_seconds: float
    backward_seconds: float
    all_reduce_seconds: float = 0.0
    waiting_period: float = 0.0

    @property
    def seconds(self) -> float:
        """x: forward and backward of one micro-batch."""
        return self.forward_seconds + self.backward_seconds

    @property
    def period(self) -> float:
        """Seconds from one micro-batch to the next."""
        return max(self.seconds, self.waiting_period)


@dataclass(frozen=True)
class StepTimes:
    """T_w, T_e and T_a of one step, in seconds (Eq 5 and 6)."""

    waiting: float
    execution: float
    all_reduce: float

    @property
    def total(self) -> float:
        return self.waiting + self.execution + self.all_reduce


def in_flight_limit(*, stages_to_end: int, micro_batches: int, most: int | None = None) -> int:
    """K_p = max(1, 2(P-p)-1) for the stage with `stages_to_end` = P-p stages from it to the end, itself included.

    Never more than the round has micro-batches, nor than `most`.
    """
    paper = max(1, 2 * stages_to_end - 1)
    return min(paper, micro_batches, paper if most is None else most)


def held_bytes(
    instance: PlanningInstance,
    *,
    first_layer: int,
    end_layer: int,
    samples: int,
    in_flight: int,
    micro_batches: int,
    left_for_weights: int = 0,
    base_bytes: int = 0,
    at_once: int | None = None,
    passing: PassingMemory | None = None,
    frame_bytes: float | None = None,
) -> int:
    """Peak memory of a device: weights, gradients, optimizer state, and the activations of K_p micro-batches (Eq 3);
    beside the paper, what the layers hold while they compute, and frames and samples on their way.

    micro_batches: of a round. left_for_weights: of those in flight, how many have only gradients of weights left.
    at_once: samples of one pass; all of them where that isn't said.
    passing: the instance's `passing_table`, where that is at hand. frame_bytes: of frames beside the micro-batch at hand, where
    that is known better than by a formula.
    """
    at_once = samples if at_once is None else at_once
    weights = instance.resident_bytes(first_layer, end_layer)
    of_sample = instance.model.saved_bytes(first_layer, end_layer) * (in_flight - left_for_weights)
    if left_for_weights:
        of_sample += instance.model.waiting_bytes(first_layer, end_layer) * left_for_weights
    activations = of_sample * at_once
    beside = passing_bytes(
        instance,
        first_layer=first_layer,
        end_layer=end_layer,
        samples=samples,
        in_flight=in_flight,
        micro_batches=micro_batches,
        at_once=at_once,
        table=passing,
        frame_bytes=frame_bytes,
    )
    return math.ceil(weights + activations) + base_bytes + beside


def plan_memory_bytes(
    instance: PlanningInstance,
    plan: Plan,
    *,
    passing: PassingMemory | None = None,
    earlier: Sequence[Plan] = (),
    frame_bytes: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Peak memory of every device that computes. passing: as `held_bytes` has it. earlier: as `further_kernel_bytes` has it.

    frame_bytes: by device, as a simulation has it, of devices for which it is known.
    """
    beside = whole_plan_bytes(instance, plan, earlier=earlier)
    return {
        device: beside[device]
        + held_bytes(
            instance,
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            samples=share,
            in_flight=min(stage.in_flight, plan.micro_batches),
            micro_batches=plan.micro_batches,
            left_for_weights=plan.held_micro_batches(index)[1],
            base_bytes=instance.devices[instance.index_of[device]].base_bytes,
            at_once=stage.at_once(device),
            passing=passing,
            frame_bytes=None if frame_bytes is None else frame_bytes.get(device),
        )
        for index, stage in enumerate(plan.stages)
        for device, share in stage.shares.items()
    }


def fits_memory(
    instance: PlanningInstance, plan: Plan, *, passing: PassingMemory | None = None, earlier: Sequence[Plan] = ()
) -> bool:
    """Whether every device that computes has the memory that the plan needs. passing, earlier: as `plan_memory_bytes` has
    them.
    """
    needed = plan_memory_bytes(instance, plan, passing=passing, earlier=earlier)
    devices, places = instance.devices, instance.index_of
    return all(size <= devices[places[name]].memory_bytes for name, size in needed.items())


def all_reduce_seconds(instance: PlanningInstance, stage: Stage) -> float:
    """T_a (Eq 5): a ring over the group, 2(|G|-1) transfers of W/|G| over the slowest link; 0 for one device."""
    gradient_bytes = instance.model.gradient_bytes(stage.first_layer, stage.end_layer)
    size = len(stage.shares)
    if size == 1 or gradient_bytes == 0:
        return 0.0
    places = [instance.index_of[device] for device in stage.shares]
    slowest = instance.network.slowest((a, b) for a in places for b in places if a != b)
    return 2 * (size - 1) * (gradient_bytes / size / slowest + instance.network.latency_seconds)


def pairs_in_use(sender: Stage, receiver: Stage) -> list[tuple[str, str]]:
    """The pairs of devices whose sample intervals overlap: those that exchange frames."""
    receiving = split_micro_batch(receiver.shares, receiver.samples)
    return [
        (a, b)
        for a, interval in split_micro_batch(sender.shares, sender.samples).items()
        for b, _ in overlaps(interval, receiving)
    ]


def link_step(instance: PlanningInstance, index: int, sender: Stage, receiver: Stage) -> Step:
    """The step between two stages: a micro-batch's bytes at the cut over the slowest pair in use, plus the latency.

    Forward goes from sender to receiver, backward the other way, each at its own direction's bandwidth. Gradients come back for
    what needs them alone, which the paper has for all that crosses.
    """
    pairs = [(instance.index_of[a], instance.index_of[b]) for a, b in pairs_in_use(sender, receiver)]
    sent = float(instance.model.cut_bytes[sender.end_layer]) * sender.samples
    answered = float(instance.model.answered_bytes[sender.end_layer]) * sender.samples
    latency = instance.network.latency_seconds
    return Step(
        StepKind.LINK,
        index,
        forward_seconds=sent / instance.network.slowest(pairs) + latency,
        backward_seconds=answered / instance.network.slowest((b, a) for a, b in pairs) + latency,
    )


def stage_step(instance: PlanningInstance, index: int, stage: Stage, *, weights_apart: bool = False) -> Step:
    """The step of a stage: its slowest replica, forward and backward apart (Eq 8).

    weights_apart: a backward is what its two parts take, which may be more than it takes in one go.
    """
    layers = (stage.first_layer, stage.end_layer)

    def backward(profile: DeviceProfile, size: int) -> float:
        return sum(profile.backward_apart(size, *layers)) if weights_apart else profile.backward(size, *layers)

    parts = [(instance.profile_of(device), passes_of_share(stage, device)) for device in stage.devices]
    return Step(
        StepKind.STAGE,
        index,
        forward_seconds=max(sum(profile.forward(size, *layers) for size in sizes) for profile, sizes in parts),
        backward_seconds=max(sum(backward(profile, size) for size in sizes) for profile, sizes in parts),
        all_reduce_seconds=all_reduce_seconds(instance, stage),
    )


def passes_of_share(stage: Stage, device: str, samples: int | None = None, *, least_batch: int = 1) -> list[int]:
    """Samples of each pass in which a replica computes its share of a micro-batch, or so many samples of a smaller one."""
    interval = Interval(0, stage.shares[device] if samples is None else samples)
    return [part.size for part in split_in_passes(interval, at_once=stage.at_once(device), least_batch=least_batch)]


def pipeline_steps(
    instance: PlanningInstance, stages: Sequence[Stage], *, weights_apart: bool = False
) -> tuple[Step, ...]:
    """All 2P-1 steps in order: stage, link, stage, ... weights_apart: as stage_step has it."""
    steps: list[Step] = []
    for index, stage in enumerate(stages):
        if index:
            steps.append(link_step(instance, index - 1, stages[index - 1], stage))
        steps.append(stage_step(instance, index, stage, weights_apart=weights_apart))
    to_end = 0.0
    for place in reversed(range(len(steps))):
        to_end += steps[place].seconds
        if steps[place].kind is StepKind.STAGE and stages[steps[place].index].in_flight < len(steps) - place:
            period = to_end / stages[steps[place].index].in_flight
            steps[place] = replace(steps[place], waiting_period=period)
    return tuple(steps)


def dominant_step(steps: Sequence[Step], micro_batches: int) -> int:
    """Eq 11: the step with the fewest bubbles, argmax over c of M x_c + sum of x_i for i < c; the first of equals."""
    best, best_score, before = 0, -math.inf, 0.0
    for index, step in enumerate(steps):
        score = micro_batches * step.period + before
        if score > best_score:
            best, best_score = index, score
        before += step.seconds
    return best


def step_times(steps: Sequence[Step], micro_batches: int) -> tuple[StepTimes, ...]:
    """T_w, T_e and T_a of every step (Eq 5 and 6)."""
    dominant = dominant_step(steps, micro_batches)
    before = [sum(step.seconds for step in steps[:index]) for index in range(len(steps))]
    # Eq 6 in one line: before the dominant step the x in between are added, behind it they are taken off.
    aligned = micro_batches * steps[dominant].period + before[dominant]
    return tuple(
        StepTimes(
            waiting=sum(earlier.forward_seconds for earlier in steps[:index]),
            execution=aligned - before[index],
            all_reduce=step.all_reduce_seconds,
        )
        for index, step in enumerate(steps)
    )


def round_seconds(steps: Sequence[Step], micro_batches: int) -> float:
    """Eq 4: seconds of one round."""
    return max(times.total for times in step_times(steps, micro_batches))


def evaluate(
    instance: PlanningInstance,
    plan: Plan,
    *,
    frame_bytes: Mapping[str, float] | None = None,
    earlier: Sequence[Plan] = (),
) -> Prediction:
    """What any plan is expected to do on an instance, a hand-written one too; it needn't fit memory.

    frame_bytes, earlier: as `plan_memory_bytes` has them.
    A smaller last micro-batch counts as a full one, since the first replica takes its full share of it.
    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    instance.validate_plan(plan)
    steps = pipeline_steps(instance, plan.stages, weights_apart=plan.has_weights_apart)
    seconds = round_seconds(steps, plan.micro_batches)
    return Prediction(
        round_seconds=seconds,
        samples_per_second=plan.mini_batch / seconds if seconds > 0 else math.inf,
        memory_bytes=plan_memory_bytes(instance, plan, frame_bytes=frame_bytes, earlier=earlier),
        stages=tuple(
            StagePrediction(
                forward_seconds=steps[2 * index].forward_seconds,
                backward_seconds=steps[2 * index].backward_seconds,
                all_reduce_seconds=steps[2 * index].all_reduce_seconds,
                send_seconds=steps[2 * index + 1].forward_seconds if 2 * index + 1 < len(steps) else 0.0,
            )
            for index in range(len(plan.stages))
        ),
        dominant=describe_limit(plan, steps),
    )


def describe_limit(plan: Plan, steps: Sequence[Step]) -> str:
    """What limits the round, in words: computing in a stage, a link, or an all-reduce at the end."""
    times = step_times(steps, plan.micro_batches)
    last = max(range(len(steps)), key=lambda index: times[index].total)
    dominant = dominant_step(steps, plan.micro_batches)
    if times[last].all_reduce > plan.micro_batches * steps[dominant].period:
        return f"the all-reduce of stage {steps[last].index} ({_names(plan.stages[steps[last].index].devices)})"
    step = steps[dominant]
    if step.kind is StepKind.LINK:
        return f"the link from stage {step.index} to stage {step.index + 1}"
    if step.waiting_period > step.seconds:
        return f"few micro-batches in flight: stage {step.index} waits for what it sent to come back"
    return f"computing in stage {step.index} ({_names(plan.stages[step.index].devices)})"


def _names(devices: Sequence[str]) -> str:
    return ", ".join(devices)
