"""What a device's memory holds for its links and for its stage's all-reduce, beside what it holds for the layers. Pure.

    upstream peers --> [ device ] --> downstream peers        each has a thread, TLS and buffers at either end
                        ^      |
                        +group-+                              pieces of buckets that come and go

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
        most = _most_reduced(instance, stage)
        largest = _largest_gradient(instance, stage) if stage.replicated else 0
        for device in stage.devices:
            reduced = min(_reduce_bytes(instance, stage, device, largest=largest), most) if stage.replicated else 0
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
            for device in stage.devices:
                peers[device].update(stage.all_reduce_peers(device))
    return peers


def _largest_gradient(instance: PlanningInstance, stage: Stage) -> int:
    """Bytes of a layer's gradients. There is room for all of a gradient, also where only some rows travel."""
    return max(
        layer.all_trained_bytes if layer.gradient_bytes is None or layer.met_gradient_bytes else layer.gradient_bytes
        for layer in instance.model.layers[stage.first_layer : stage.end_layer]
    )


def _reduce_bytes(instance: PlanningInstance, stage: Stage, device: str, *, largest: int) -> float:
    """As measured with two replicas and pieces of the usual size; those of very large parameters are larger.

    largest: bytes of the largest gradient.
    """
    size = len(stage.devices)
    larger = max(1.0, largest / MOST_PIECES / bucket_bytes(size))
    return instance.training.reduce_bytes * larger * max(1.0, _held_pieces(stage, device) / _held_pieces_of_two())


def _held_pieces(stage: Stage, device: str) -> float:
    """Bytes of a bucket's pieces that a replica has room for: what arrives at an owner, and the copy of a sum that leaves. Sums
    arrive in the bucket itself, or on a narrow wire in half of its bytes.
    """
    size, owners = len(stage.devices), stage.chunk_owners
    if size == 2:
        return _held_pieces_of_two()
    return bucket_bytes(size) * size / len(owners) if device in owners else 0.0


def _held_pieces_of_two() -> float:
    return 3.0 * bucket_bytes(2)


def _most_reduced(instance: PlanningInstance, stage: Stage) -> int:
    """What is on its way is never more than a few times all there is."""
    return 4 * instance.model.gradient_bytes(stage.first_layer, stage.end_layer)
