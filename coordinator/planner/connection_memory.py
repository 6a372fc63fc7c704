"""What a device's memory holds for its links and for its stage's all-reduce, beside what it holds for the layers. Pure.

    upstream peers --> [ device ] --> downstream peers        each has a thread, TLS and buffers at either end
                        ^      |
                        +ring--+                              pieces of buckets that come and go

Both are known for a whole plan only; while it looks for one, a planner takes the links of BASE_PEERS for granted, which
`base_bytes` has.
"""

from __future__ import annotations

import itertools

from edgeswarm.gradient_pieces import MOST_PIECES, bucket_bytes
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import overlaps, split_micro_batch

BASE_PEERS = 2


def connection_bytes(instance: PlanningInstance, plan: Plan) -> dict[str, int]:
    """By device that computes; 0 where the instance doesn't say what links take."""
    training = instance.training
    if not training.peer_bytes and not training.reduce_bytes:
        return dict.fromkeys(plan.devices, 0)
    peers = peers_of(plan)
    found = {}
    for stage in plan.stages:
        # Two exchange whole pieces; more pass parts of them around, but their pieces are larger by as much.
        reduced = min(_reduce_bytes(instance, stage), _most_reduced(instance, stage)) if stage.replicated else 0
        for device in stage.devices:
            found[device] = training.peer_bytes * max(0, len(peers[device]) - BASE_PEERS) + round(reduced)
    return found


def peers_of(plan: Plan) -> dict[str, set[str]]:
    """With whom each device exchanges frames of a full micro-batch, or buckets."""
    intervals = [split_micro_batch(stage.shares, plan.micro_batch) for stage in plan.stages]
    peers: dict[str, set[str]] = {device: set() for device in plan.devices}
    for before, after in itertools.pairwise(intervals):
        for device, interval in after.items():
            for peer, _ in overlaps(interval, before):
                peers[device].add(peer)
                peers[peer].add(device)
    for stage in plan.stages:
        if stage.replicated:
            for place, device in enumerate(stage.devices):
                successor = stage.devices[(place + 1) % len(stage.devices)]
                peers[device].add(successor)
                peers[successor].add(device)
    return peers


def _reduce_bytes(instance: PlanningInstance, stage: Stage) -> float:
    """As measured with pieces of the usual size; those of very large parameters are larger."""
    largest = max(
        layer.param_bytes if layer.gradient_bytes is None else layer.gradient_bytes
        for layer in instance.model.layers[stage.first_layer : stage.end_layer]
    )
    return instance.training.reduce_bytes * max(1.0, largest / MOST_PIECES / bucket_bytes(len(stage.devices)))


def _most_reduced(instance: PlanningInstance, stage: Stage) -> int:
    """What is on its way is never more than a few times all there is."""
    return 4 * instance.model.gradient_bytes(stage.first_layer, stage.end_layer)
