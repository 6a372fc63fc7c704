"""HetPipe (Park et al., ATC 2020), as a baseline only: pipelines inside groups, a parameter server between them.

    virtual worker 0   device a --> device b --> device c      each holds the whole model, takes a part of the samples,
    virtual worker 1   device d --> device e                   and keeps its pipeline full from wave to wave
                            |  ^
                   pushes   v  | pulls       once a wave, all gradients and all weights
                    parameter server, in equal parts on all devices

A wave here is what makes up one mini-batch over all workers, so that its seconds compare with those of a round. Workers are
composed as HetPipe's `equal distribution` does: the devices by speed, dealt out, so that all workers are alike.

It is taken at its best: pushes and pulls go beside the computing of the next wave (its weights are a wave old) and don't
disturb activations on the same cards; so a wave takes as long as the slower of the two. Nothing here can be trained with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .simulate import round_seconds

MOST_WORKERS = 8


@dataclass(frozen=True)
class HetPipe:
    """A simulated setting. workers: a pipeline each, with its part of the mini-batch.

    wave_seconds: of the slowest worker's computing. sync_seconds: of all pushes and pulls.
    """

    workers: tuple[Plan, ...]
    wave_seconds: float
    sync_seconds: float

    @property
    def round_seconds(self) -> float:
        """Seconds for as many samples as a round of the other plans has."""
        return max(self.wave_seconds, self.sync_seconds)


def best_hetpipe(
    instance: PlanningInstance, plan_pipeline: Callable[[PlanningInstance], Plan], *, most_workers: int = MOST_WORKERS
) -> HetPipe:
    """The fastest number of virtual workers, one to `most_workers`.

    plan_pipeline: makes a pipeline that fits the memory of an instance's devices, or raises EdgeswarmError (NO_PLAN_FITS).
    Raises that error where no number of workers fits.
    """
    best: HetPipe | None = None
    refusal: EdgeswarmError | None = None
    for count in range(1, min(most_workers, len(instance.devices), instance.training.mini_batch) + 1):
        try:
            found = simulate_hetpipe(instance, dealt_out(instance, count), plan_pipeline)
        except EdgeswarmError as error:
            if error.code is not ErrorCode.NO_PLAN_FITS:
                raise
            refusal = refusal or error
            continue
        if best is None or found.round_seconds < best.round_seconds:
            best = found
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def dealt_out(instance: PlanningInstance, count: int) -> list[list[str]]:
    """The devices in `count` groups, the fastest first to each in turn, there and back: a b c | c b a | a b c."""
    by_speed = sorted(instance.device_names, key=lambda name: (-_speed(instance, name), name))
    groups: list[list[str]] = [[] for _ in range(count)]
    for place, name in enumerate(by_speed):
        row, column = divmod(place, count)
        groups[column if row % 2 == 0 else count - 1 - column].append(name)
    return groups


def simulate_hetpipe(
    instance: PlanningInstance,
    groups: Sequence[Sequence[str]],
    plan_pipeline: Callable[[PlanningInstance], Plan],
) -> HetPipe:
    """These virtual workers, the samples of a mini-batch shared among them by speed.

    Raises EdgeswarmError (NO_PLAN_FITS) where a worker can't hold the model.
    """
    speeds = [sum(_speed(instance, name) for name in group) for group in groups]
    workers, waves = [], []
    for group, samples in zip(groups, _shared_by(speeds, instance.training.mini_batch), strict=True):
        part = instance.only(group)
        part = replace(part, training=replace(instance.training, mini_batch=samples, rest=0))
        plan = plan_pipeline(part)
        workers.append(plan)
        waves.append(_full_pipeline_seconds(part, plan))
    return HetPipe(tuple(workers), max(waves), _sync_seconds(instance, workers))


def _full_pipeline_seconds(instance: PlanningInstance, plan: Plan) -> float:
    """A worker's seconds for its samples in a pipeline that never runs empty, and the optimizer's step.

    Twice as many micro-batches less once as many: what fills and empties the pipeline is the same in both.
    """
    more = plan.micro_batch * plan.micro_batches
    longer_plan = replace(plan, micro_batches=2 * plan.micro_batches, predicted=None)
    longer = replace(instance, training=replace(instance.training, mini_batch=plan.mini_batch + more, rest=0))
    seconds = round_seconds(longer, longer_plan) - round_seconds(instance, plan)
    step = max(
        instance.profile_of(device).update(stage.first_layer, stage.end_layer)
        for stage in plan.stages
        for device in stage.shares
    )
    return seconds * plan.mini_batch / more + step


def _sync_seconds(instance: PlanningInstance, workers: Sequence[Plan]) -> float:
    """Each device pushes its stage's gradients to all devices in equal parts, and pulls the weights from them.

    As long as the card or the pair takes that has most to carry: a push, and a pull the other way round.
    """
    if len(workers) == 1:
        return 0.0
    held: dict[str, float] = {}
    for plan in workers:
        for stage in plan.stages:
            size = instance.model.gradient_bytes(stage.first_layer, stage.end_layer)
            held |= {device: float(size) for device in stage.shares}
    places = {name: instance.index_of[name] for name in held}
    parts = {name: size / len(held) for name, size in held.items()}
    rates = instance.network.bandwidth
    total = 0.0
    for pulls in (False, True):
        pairs = {(a, b): parts[b if pulls else a] / rates[places[a]][places[b]] for a in held for b in held if a != b}
        sent = {a: sum(parts[b if pulls else a] for b in held if b != a) for a in held}
        received = {b: sum(parts[b if pulls else a] for a in held if a != b) for b in held}
        egress = (sent[a] / max(rates[places[a]][places[b]] for b in held if b != a) for a in held)
        ingress = (received[b] / max(rates[places[a]][places[b]] for a in held if a != b) for b in held)
        total += max(*pairs.values(), *egress, *ingress) + instance.network.latency_seconds
    return total


def _speed(instance: PlanningInstance, name: str) -> float:
    """Samples per second through the whole model, at the largest batch that was measured or the mini-batch (Eq 9)."""
    profile = instance.profile_of(name)
    batch = min(max(profile.batch_sizes), instance.training.mini_batch)
    layers = instance.model.layer_count
    seconds = profile.forward(batch, 0, layers) + profile.backward(batch, 0, layers)
    return batch / seconds if seconds > 0 else math.inf


def _shared_by(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to the weights, at least 1 each, that add up to the total; the largest rests first."""
    finite = [weight if math.isfinite(weight) else 1.0 for weight in weights]
    spare = total - len(finite)
    exact = [spare * weight / sum(finite) for weight in finite]
    shares = [1 + int(value) for value in exact]
    by_rest = sorted(range(len(finite)), key=lambda place: (int(exact[place]) - exact[place], place))
    for place in by_rest[: total - sum(shares)]:
        shares[place] += 1
    return shares
