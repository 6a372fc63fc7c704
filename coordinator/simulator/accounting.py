"""From the log of a simulation: what each device did with the round, what it held, what it sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from edgeswarm.chunk_owners import OwnersInTurn, traffic
from edgeswarm.model_costs import ModelCosts
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance

from .group_links import THE_GROUP
from .log import Log
from .simulation import DeviceMemory, DeviceUse, TimelineEvent
from .stage_work import ReplicaWork
from .tied_sums import sent_for_sums, tied_sums
from .waiting_frames import Change, waiting_bytes


def device_uses(
    log: Log, works: Sequence[ReplicaWork], *, windows: Sequence[tuple[float, float]], round_seconds: float, rounds: int
) -> dict[str, DeviceUse]:
    """Fractions of a round. windows: by replica, from when to when it was at so many rounds, in seconds of the log."""
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
    uses = {}
    for index, work in enumerate(works):
        begin, end = windows[index]
        # A round may take longer in the long run than these did.
        whole = max(end - begin, rounds * round_seconds)
        busy, all_reduce, sends, receives = (
            _covered(intervals[index], begin, end) / whole if whole > 0 else 0.0
            for intervals in (computing, reducing, sending, receiving)
        )
        uses[work.name] = DeviceUse(
            busy=busy,
            waiting=max(0.0, 1.0 - busy - all_reduce),
            sending=sends,
            receiving=receives,
            all_reduce=all_reduce,
        )
    return uses


def device_memory(
    instance: PlanningInstance,
    plan: Plan,
    works: Sequence[ReplicaWork],
    *,
    held: Mapping[str, int],
    saved: Sequence[Sequence[Change]],
    frames: Sequence[Sequence[Change]],
    begin: float,
    over_time: bool,
) -> dict[str, DeviceMemory]:
    """held: by device, the peak that is expected of it. saved, frames: changes of what it holds of activations and of frames,
    which come and go; the rest is there all the time.
    """
    memory = {}
    for work, of_saved, of_frames in zip(works, saved, frames, strict=True):
        stage = plan.stages[work.stage]
        # As many in flight as are allowed may not be reached.
        (in_full, left), layers = plan.held_micro_batches(work.stage), (stage.first_layer, stage.end_layer)
        of_sample = in_full * instance.model.saved_bytes(*layers) + left * instance.model.waiting_bytes(*layers)
        most = of_sample * stage.at_once(work.name)
        least = round(held[work.name] - most - waiting_bytes(of_saved, of_frames))
        curve = _curve(least, sorted([*of_saved, *of_frames]), begin)
        memory[work.name] = DeviceMemory(
            max(level for _, level in curve), held[work.name], tuple(curve) if over_time else ()
        )
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
    """What a replica sends of all its buffers, in the worker's order; small ones have fewer owners."""
    if not stage.replicated:
        return 0.0
    sent = 0.0
    owners_in_turn = OwnersInTurn(stage.chunk_owners)
    statistics = float(work.statistics_bytes)
    buffers = [(statistics, statistics, 1)] if work.statistics_bytes else []
    buckets = ((bucket.gradient_bytes, bucket.held_bytes, bucket.count) for bucket in work.buckets)
    for size, held_bytes, count in [*buffers, *buckets]:
        for _ in range(count):
            owners = owners_in_turn.of_next(held_bytes / count)
            sent += size / count * traffic(len(stage.shares), len(owners), is_owner=work.name in owners).sent
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


def _curve(least: int, changes: Sequence[Change], begin: float) -> list[tuple[float, int]]:
    """(seconds since `begin`, bytes from then on), beginning with 0 seconds. changes: in their order, to what is there always."""
    level = float(least)
    curve = [(0.0, least)]
    for seconds, _, size in changes:
        level += size
        place = (max(0.0, seconds - begin), round(level))
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
