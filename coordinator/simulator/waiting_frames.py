"""Frames that a device holds beside the micro-batch at hand, as simulated rounds show them.

    sender      | forward |== waits, or is under way ==|
    receiver                |== arrives, or is there ==| forward

They matter where stages don't keep pace: whoever takes longest has the others' frames lying with it, activations where it waits
for nothing, gradients where what it sent is back before it can go on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.schedule.policy import ActionKind

from .log import Log
from .stage_work import ReplicaWork

# A change of what a replica holds: seconds, 0 for what is freed then and 1 for what is taken, and bytes.
Change = tuple[float, int, float]


def frame_changes(log: Log, works: Sequence[ReplicaWork]) -> list[list[Change]]:
    """By replica, of the bytes of its frames: from the end of the action that made one until it has left, and from its first byte
    until the action that takes it.
    """
    computed = {
        (record.replica, record.kind, record.round, record.micro_batch): (record.start, record.end)
        for record in log.computed
    }
    changes: list[list[Change]] = [[] for _ in works]
    for transfer in log.transfers:
        kind, of_round, micro_batch = transfer.label
        made = computed.get((transfer.sender, kind, of_round, micro_batch))
        taken = computed.get((transfer.receiver, kind, of_round, micro_batch))
        if made is None or taken is None:  # samples, parts of an all-reduce, and what comes after the last round
            continue
        changes[transfer.sender] += [(made[1], 1, transfer.size), (transfer.end, 0, -transfer.size)]
        changes[transfer.receiver] += [(transfer.start, 1, transfer.size), (taken[0], 0, -transfer.size)]
    return changes


def saved_changes(log: Log, instance: PlanningInstance, plan: Plan, works: Sequence[ReplicaWork]) -> list[list[Change]]:
    """By replica, of what it saves: a micro-batch's from the start of its forward to the end of its backward, and of that what
    its weights wait for until they have their gradients.
    """
    changes: list[list[Change]] = [[] for _ in works]
    of_actions = {kind.value: kind for kind in ActionKind}
    for record in log.computed:
        if (kind := of_actions.get(record.kind)) is None:
            continue
        work = works[record.replica]
        stage = plan.stages[work.stage]
        part = work.parts[record.micro_batch]
        assert part is not None
        layers = (stage.first_layer, stage.end_layer)
        saved = instance.model.saved_bytes(*layers) * part.at_once
        waiting = instance.model.waiting_bytes(*layers) * part.at_once if plan.has_weights_apart else 0
        change = {
            ActionKind.FORWARD: (record.start, 1, saved),
            ActionKind.BACKWARD: (record.end, 0, waiting - saved),
            ActionKind.WEIGHTS: (record.end, 0, -waiting),
        }[kind]
        changes[record.replica].append(change)
    return changes


def frame_bytes(
    instance: PlanningInstance,
    plan: Plan,
    works: Sequence[ReplicaWork],
    *,
    saved: Sequence[Sequence[Change]],
    frames: Sequence[Sequence[Change]],
) -> Mapping[str, int]:
    """By device, what its frames add to its peak; empty where the instance counts none.

    Rounds aren't all alike: of what comes, a micro-batch more may lie there in one of them than in those that were simulated.
    saved, frames: as the two functions above have them.
    """
    early = instance.training.frames_held
    if not early:
        return {}
    found = {}
    for work, of_saved, of_frames in zip(works, saved, frames, strict=True):
        stage = plan.stages[work.stage]
        inputs = instance.model.cut_bytes[stage.first_layer] * stage.shares[work.name] if work.stage else 0
        found[work.name] = round(waiting_bytes(of_saved, of_frames) + early * float(inputs))
    return found


def waiting_bytes(saved: Sequence[Change], frames: Sequence[Change]) -> float:
    """What one replica's frames add to the most that it saves at any moment."""
    return max(0.0, most_held([*saved, *frames]) - most_held(saved))


def most_held(changes: Sequence[Change]) -> float:
    """The most bytes that are held at any moment."""
    levels = itertools.accumulate(size for _, _, size in sorted(changes))
    return max(levels, default=0.0)
