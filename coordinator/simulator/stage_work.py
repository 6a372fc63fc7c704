"""What a plan gives each replica to do: seconds of its actions, frames and whom they go to, buckets of gradients.

All of a round is worked out once, before time begins; replicas of one device class and share look up the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.gradient_pieces import LAST_BUCKET_BYTES, begins_bucket, bucket_bytes, pieces_of
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import Overheads, PlanningInstance
from edgeswarm.samples import Interval, micro_batch_sizes, overlaps, split_micro_batch

from ..planner.cost_model import passes_of_share

# Buckets that follow one another are simulated as one where there are more, so that large models cost no more than small ones.
MOST_BUCKETS = 12


@dataclass(frozen=True, slots=True)
class Part:
    """One replica's part of a micro-batch of one size.

    at_once: samples of a pass, all where there is one. forward_seconds, backward_seconds: with the device's overhead for an
    action; of several passes the backward is that of the last one. weights_seconds: of the gradients of weights, where the
    schedule has them apart, and the backward is the rest. upstream, downstream: with whom it exchanges frames, as (index of the
    replica, samples).
    """

    samples: int
    at_once: int
    forward_seconds: float
    backward_seconds: float
    weights_seconds: float
    upstream: tuple[tuple[int, int], ...]
    downstream: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are all-reduced together.

    gradient_bytes: of the gradients, as they travel. held_bytes: in memory, by which the worker cuts them and chooses owners.
    count: how many all-reduces of the worker it stands for. ready: by which part of a backward they are done, 0 to 1.
    """

    gradient_bytes: float
    held_bytes: float
    count: int
    ready: float


@dataclass(frozen=True, slots=True)
class ReplicaWork:
    """All that one replica does in a round.

    device: its place in the instance. parts: by micro-batch, None where it has no samples. in_flight: K.
    step_seconds: optimizer and the device's overhead of a round. sample_bytes: per sample from the data source.
    made_sample_bytes: per sample, as it waits for its use; a job's transform may make more of it than was sent.
    output_bytes: per sample, at the cut behind the stage; in output_frames for each receiver. answered_bytes, answered_frames:
    likewise, of the gradients that it sends back over the cut before it. statistics_bytes: of the sums of batch norms, which its
    group adds up after its last forward.
    """

    name: str
    device: int
    stage: int
    in_flight: int
    parts: tuple[Part | None, ...]
    overheads: Overheads
    step_seconds: float
    sample_bytes: float
    made_sample_bytes: int
    answered_bytes: int
    answered_frames: int
    output_bytes: int
    output_frames: int
    buckets: tuple[Bucket, ...]
    statistics_bytes: int

    @property
    def micro_batches(self) -> list[int]:
        """Those in which the replica has samples."""
        return [index for index, part in enumerate(self.parts) if part is not None]


def replica_works(instance: PlanningInstance, plan: Plan) -> list[ReplicaWork]:
    """In the order of stages, and of replicas within them: the order of `Plan.devices`."""
    least = instance.model.largest_least_batch
    sizes = micro_batch_sizes(plan.mini_batch, micro_batch=plan.micro_batch, least_batch=least)
    number = {name: index for index, name in enumerate(plan.devices)}
    intervals = {
        size: [split_micro_batch(stage.shares, size, least_batch=least) for stage in plan.stages]
        for size in dict.fromkeys(sizes)
    }
    works = []
    for index, stage in enumerate(plan.stages):
        layers = (stage.first_layer, stage.end_layer)
        cuts = _bucket_cuts(instance, stage) if stage.replicated else ()
        statistics_bytes = instance.model.statistics_bytes(*layers) if stage.replicated else 0
        for name in stage.shares:
            by_size = {
                size: _part(instance, plan, name, split=split, number=number) for size, split in intervals.items()
            }
            profile = instance.profile_of(name)
            works.append(
                ReplicaWork(
                    name=name,
                    device=instance.index_of[name],
                    stage=index,
                    in_flight=stage.in_flight,
                    parts=tuple(by_size[size] for size in sizes),
                    overheads=profile.overheads,
                    step_seconds=profile.update(*layers) + profile.overheads.round_seconds,
                    sample_bytes=_sample_bytes(instance, plan, index, name),
                    made_sample_bytes=_made_sample_bytes(instance, plan, index),
                    answered_bytes=int(instance.model.answered_bytes[stage.first_layer]),
                    answered_frames=instance.model.layers[stage.first_layer - 1].answered_frames if index else 1,
                    output_bytes=int(instance.model.cut_bytes[stage.end_layer]),
                    output_frames=instance.model.layers[stage.end_layer - 1].output_frames,
                    buckets=_buckets(instance, stage, name, cuts, apart=plan.has_weights_apart),
                    statistics_bytes=statistics_bytes,
                )
            )
    return works


def _part(
    instance: PlanningInstance, plan: Plan, name: str, *, split: list[dict[str, Interval]], number: dict[str, int]
) -> Part | None:
    index = plan.stage_of(name)
    stage = plan.stages[index]
    mine = split[index][name]
    if mine.size == 0:
        return None
    profile = instance.profile_of(name)
    action = profile.overheads.action_seconds
    before = split[index - 1] if index else {}
    after = split[index + 1] if index + 1 < len(split) else {}
    peers = (
        tuple((number[peer], shared.size) for peer, shared in overlaps(mine, before)),
        tuple((number[peer], shared.size) for peer, shared in overlaps(mine, after)),
    )
    passes = passes_of_share(stage, name, mine.size, least_batch=instance.model.largest_least_batch)
    layers = (stage.first_layer, stage.end_layer)
    if plan.has_weights_apart:
        forward = profile.forward(mine.size, *layers) + action
        rest, weights = profile.backward_apart(mine.size, *layers)
        return Part(mine.size, mine.size, forward, rest + action, weights, *peers)
    last_backward = profile.backward(passes[-1], *layers) + action
    whole = sum(profile.forward(size, *layers) + profile.backward(size, *layers) + 2 * action for size in passes)
    return Part(
        mine.size,
        passes[0],
        whole - last_backward,
        last_backward,
        0.0,
        *peers,
    )


def _sample_bytes(instance: PlanningInstance, plan: Plan, stage: int, name: str) -> float:
    """Per sample, what a replica of the stage gets from the data source, in the mean of all epochs."""
    source = instance.data_source
    if source is None:
        return 0.0
    size = instance.served_bytes(is_first=stage == 0, is_last=stage == len(plan.stages) - 1)
    return size * source.fetched(plan.stages[stage].shares[name] / plan.micro_batch)


def _made_sample_bytes(instance: PlanningInstance, plan: Plan, stage: int) -> int:
    """Per sample, what the feed of a replica of the stage holds."""
    inputs = instance.model.input_bytes if stage == 0 else 0
    return inputs + (instance.model.target_bytes if stage == len(plan.stages) - 1 else 0)


def _buckets(
    instance: PlanningInstance, stage: Stage, name: str, cuts: Sequence[tuple[int, int, int]], *, apart: bool
) -> tuple[Bucket, ...]:
    """In the order of the backward, the last layer first. A layer's gradients are done when its backward is, or its weights are,
    where they come apart and take any time.

    cuts: of `_bucket_cuts`.
    """
    if not cuts:
        return ()
    gradients, held = _gradient_bytes_before(instance, stage), _held_gradient_bytes_before(instance, stage)
    begin = stage.first_layer
    profile = instance.profile_of(name)
    seconds = profile.seconds_before(stage.at_once(name))[1]
    if apart and any(profile.weights_parts[stage.first_layer : stage.end_layer]):
        seconds = np.concatenate([[0.0], np.cumsum(np.diff(seconds) * np.array(profile.weights_parts))])
    end = float(seconds[stage.end_layer])
    whole = end - float(seconds[stage.first_layer])

    def bucket(first: int, behind: int, count: int) -> Bucket:
        ready = (end - float(seconds[first])) / whole if whole > 0 else 1.0
        places = behind - begin, first - begin
        travelling, in_memory = (float(before[places[0]] - before[places[1]]) for before in (gradients, held))
        return Bucket(travelling, in_memory, count, min(1.0, ready))

    return tuple(bucket(*cut) for cut in cuts)


def _bucket_cuts(instance: PlanningInstance, stage: Stage) -> list[tuple[int, int, int]]:
    """Of each bucket its layers [first, end), and how many all-reduces of the worker it stands for; the same on all replicas.

    A layer that begins a bucket is taken as if it were one parameter.
    """
    largest = bucket_bytes(len(stage.shares))
    begin = stage.first_layer
    before = _held_gradient_bytes_before(instance, stage)
    total = before[-1] - before[0]
    if total == 0:
        return []
    least = total / MOST_BUCKETS
    cuts: list[tuple[int, int, int]] = []
    end = len(before) - 1  # the gathered buckets begin behind this layer
    count, held = 0, 0.0
    for layer in reversed(range(len(before) - 1)):
        size = before[layer + 1] - before[layer]
        ahead = before[layer] - before[0]
        # As the worker does; it reduces a parameter that is larger than a bucket in pieces.
        if size and (count == 0 or begins_bucket(size, held=held, before=ahead, largest=largest)):
            if count and (before[end] - before[layer + 1] >= least or ahead + size <= LAST_BUCKET_BYTES):
                cuts.append((begin + layer + 1, begin + end, count))
                end, count = layer + 1, 0
            count, held = count + pieces_of(size, piece_bytes=largest), 0
        held += size
    cuts.append((begin, begin + end, count))
    return cuts


def _gradient_bytes_before(instance: PlanningInstance, stage: Stage) -> list[float]:
    """[layers of the stage + 1]: of its layers before each cut, as they travel; a tied parameter is the first one's, whose
    backward is last.
    """
    first, ends = stage.first_layer, np.arange(stage.first_layer, stage.end_layer + 1)
    sizes: list[float] = instance.model.gradient_bytes_of_runs(np.array(first), ends).tolist()
    return sizes


def _held_gradient_bytes_before(instance: PlanningInstance, stage: Stage) -> list[float]:
    """The same as they are in memory: all rows of a table, and as wide as they are computed."""
    first, ends = np.array(stage.first_layer), np.arange(stage.first_layer, stage.end_layer + 1)
    model = instance.model
    whole = model.trained_bytes_before[ends] - model.trained_bytes_before[first]
    tied = [tensor.param_bytes if tensor.gradient_bytes else 0 for tensor in model.tied]
    sizes: list[float] = (whole - model.counted_again(first, ends, tied)).tolist()
    return sizes
