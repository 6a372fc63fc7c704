"""From the log of a simulation: what each device did with the round, what it held, what it sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgeswarm.chunk_owners import owners_of_buffer, traffic
from edgeswarm.model_costs import ModelCosts
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance

from ..planner.cost_model import held_bytes
from ..planner.whole_plan_memory import whole_plan_bytes
from .group_links import THE_GROUP
from .log import Log
from .simulation import DeviceMemory, DeviceUse, TimelineEvent
from .stage_work import ReplicaWork
from .tied_sums import sent_for_sums, tied_sums


def device_uses(log: Log, works: Sequence[ReplicaWork], *, begin: float, end: float) -> dict[str, DeviceUse]:
    """Fractions of the time from begin to end, in seconds of the log."""
    count = len(works)
    computing: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    reducing: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    sending: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    receiving: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    for record in log.computed:
        computing[record.replica].append((record.start, record.end))
    for wait in log.all_reduces:
        reducing[wait.replica].append((wait.start, wait.end))
    for transfer in log.transfers:
        if transfer.sender >= 0:
            sending[transfer.sender].append((transfer.start, transfer.end))
        if transfer.receiver >= 0:
            receiving[transfer.receiver].append((transfer.start, transfer.end))
    whole = end - begin

    def part(intervals: list[tuple[float, float]]) -> float:
        return _covered(intervals, begin, end) / whole if whole > 0 else 0.0

    uses = {}
    for index, work in enumerate(works):
        busy, all_reduce = part(computing[index]), part(reducing[index])
        uses[work.name] = DeviceUse(
            busy=busy,
            waiting=max(0.0, 1.0 - busy - all_reduce),
            sending=part(sending[index]),
            receiving=part(receiving[index]),
            all_reduce=all_reduce,
        )
    return uses


def device_memory(
    log: Log, instance: PlanningInstance, plan: Plan, works: Sequence[ReplicaWork], *, begin: float, over_time: bool
) -> dict[str, DeviceMemory]:
    """A micro-batch's saved activations are held from the start of its forward to the end of its backward."""
    changes: list[list[tuple[float, int]]] = [[] for _ in works]
    for record in log.computed:
        if record.kind == "step":
            continue
        work = works[record.replica]
        stage = plan.stages[work.stage]
        part = work.parts[record.micro_batch]
        assert part is not None
        saved = instance.model.saved_bytes(stage.first_layer, stage.end_layer) * part.at_once
        change = (record.start, saved) if record.kind == "forward" else (record.end, -saved)
        changes[record.replica].append(change)
    memory = {}
    beside = whole_plan_bytes(instance, plan)
    for index, work in enumerate(works):
        stage = plan.stages[work.stage]
        in_flight = min(stage.in_flight, plan.micro_batches)
        at_once = stage.at_once(work.name)
        saved = instance.model.saved_bytes(stage.first_layer, stage.end_layer) * at_once
        # What waits for its backward comes and goes with the micro-batches.
        held = beside[work.name] + held_bytes(
            instance,
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            samples=stage.shares[work.name],
            in_flight=in_flight,
            micro_batches=plan.micro_batches,
            base_bytes=instance.devices[work.device].base_bytes,
            at_once=at_once,
        )
        curve = _curve(held - in_flight * saved, changes[index], begin)
        memory[work.name] = DeviceMemory(max(level for _, level in curve), tuple(curve) if over_time else ())
    return memory


def sent_bytes(instance: PlanningInstance, works: Sequence[ReplicaWork], plan: Plan) -> dict[str, float]:
    """Bytes that each device sends in a round: frames both ways, its part of the all-reduce, sums of tied parameters."""
    sent = {}
    for_sums = sent_for_sums(tied_sums(instance.model, plan), plan)
    for work in works:
        forward = sum(samples for part in work.parts if part for _, samples in part.downstream)
        backward = sum(samples for part in work.parts if part for _, samples in part.upstream)
        frames = float(forward * work.output_bytes + backward * work.answered_bytes)
        stage = plan.stages[work.stage]
        reduced = _all_reduced_bytes(work, stage) - _unmet_bytes(instance, work, stage)
        sent[work.name] = frames + reduced + for_sums[work.name]
    return sent


def _all_reduced_bytes(work: ReplicaWork, stage: Stage) -> float:
    """What a replica sends of all its buffers; small ones have fewer owners."""
    if not stage.replicated:
        return 0.0
    sent = 0.0
    buffers = [(float(work.statistics_bytes), 1), *((bucket.gradient_bytes, bucket.count) for bucket in work.buckets)]
    for size, count in buffers:
        owners = owners_of_buffer(stage.chunk_owners, size / count)
        sent += size * traffic(len(stage.shares), len(owners), is_owner=work.name in owners).sent
    return sent


def _unmet_bytes(instance: PlanningInstance, work: ReplicaWork, stage: Stage) -> float:
    """What a replica doesn't send to owners of those gradients whose rows others met; the sums have them."""
    if not stage.replicated:
        return 0.0
    samples = sum(part.samples for part in work.parts if part is not None)
    unmet = unmet_gradient_bytes(instance.model, stage.first_layer, stage.end_layer, samples=samples)
    owners = stage.chunk_owners
    kept = 1 / len(owners) if work.name in owners and len(stage.shares) > 2 else 0.0
    return unmet * (1 - kept)


def timeline(log: Log, works: Sequence[ReplicaWork], *, begin: float, round_number: int) -> tuple[TimelineEvent, ...]:
    """The events of a round that begins at `begin`; of samples and all-reduces those that end in it."""
    # Behind the replicas: a group, whose index is -2, and the data source, -1.
    names = [work.name for work in works] + ["its group", ""]
    events = [
        TimelineEvent(
            names[record.replica], "compute", record.kind, record.micro_batch, record.start - begin, record.end - begin
        )
        for record in log.computed
        if record.round == round_number
    ]
    events += [
        TimelineEvent(names[wait.replica], "all-reduce", "all-reduce", -1, wait.start - begin, wait.end - begin)
        for wait in log.all_reduces
        if wait.round == round_number
    ]
    for transfer in log.transfers:
        kind, of_round, micro_batch = transfer.label
        is_frame = kind in ("forward", "backward")
        if of_round == round_number if is_frame else transfer.end > begin:
            sender, receiver = names[transfer.sender], names[transfer.receiver]
            place = (kind, micro_batch if is_frame else -1, transfer.start - begin, transfer.end - begin)
            if transfer.sender != THE_GROUP:
                events.append(TimelineEvent(sender, "egress", *place, peer=receiver, size_bytes=transfer.size))
            if transfer.receiver != THE_GROUP:
                events.append(TimelineEvent(receiver, "ingress", *place, peer=sender, size_bytes=transfer.size))
    order = {name: place for place, name in enumerate(names)}
    return tuple(sorted(events, key=lambda event: (event.start_seconds, order[event.device], event.track)))


def _covered(intervals: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds between begin and end that lie in any of the intervals."""
    covered, reached = 0.0, begin
    for start, stop in sorted(intervals):
        first, last = max(start, reached), min(stop, end)
        if last > first:
            covered += last - first
            reached = last
    return covered


def _curve(held: int, changes: Sequence[tuple[float, int]], begin: float) -> list[tuple[float, int]]:
    """(seconds since `begin`, bytes from then on), beginning with 0 seconds; what is freed at a moment is freed first."""
    level = held
    curve = [(0.0, held)]
    for seconds, change in sorted(changes):
        level += change
        place = (max(0.0, seconds - begin), level)
        if curve[-1][0] == place[0]:
            curve[-1] = place
        else:
            curve.append(place)
    return curve


def unmet_gradient_bytes(model: ModelCosts, first_layer: int, end_layer: int, *, samples: int) -> float:
    """How many fewer bytes of gradients than those of the mini-batch so many of its samples bring."""
    unmet = 0.0
    for layer in model.layers[first_layer:end_layer]:
        if layer.met_gradient_bytes:
            numbers, sizes = zip((0, 0), *layer.met_gradient_bytes, strict=True)
            unmet += sizes[-1] - float(np.interp(samples, numbers, sizes))
    return unmet
