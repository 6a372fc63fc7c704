"""The samples of one stage's replica: which ones it asks for, and how a batch of them becomes the stage's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import model_arguments
from edgeswarm.model.stage import StageModule
from edgeswarm.model.structure import flatten
from edgeswarm.routes import Routes
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.sample_stream import SamplePart

from .feed import Batch, FeedRequest, rebuilt

_NAMED = 3  # samples, in a message


def sample_part(routes: Routes) -> SamplePart | None:
    """What a replica needs of its samples: inputs at the first stage, targets at the last; None between."""
    if routes.is_first and routes.is_last:
        return SamplePart.BOTH
    if routes.is_first:
        return SamplePart.INPUTS
    return SamplePart.TARGETS if routes.is_last else None


def feed_requests(routes: Routes, order: SampleOrder, first_round: int, end_round: int) -> Iterator[FeedRequest]:
    """What this replica needs of every micro-batch of rounds first_round <= r < end_round, in the order of use."""
    epoch, permutation = -1, order.permutation(0)
    for round_number in range(first_round, end_round):
        if order.epoch_of(round_number) != epoch:
            epoch = order.epoch_of(round_number)
            permutation = order.permutation(epoch)
        start = (round_number % order.rounds_per_epoch) * order.batch_size
        indices = permutation[start : start + order.samples_of(round_number)].tolist()
        yield from _requests_of_round(routes, indices, round_number, epoch)


def evaluation_requests(routes: Routes, length: int, round_number: int) -> Iterator[FeedRequest]:
    """What this replica needs of an evaluation after so many rounds: all items in order, one round of `length` samples.

    Its data epoch is always 0, so that every evaluation's transform draws the same.
    """
    return _requests_of_round(routes, range(length), round_number, 0)


def _requests_of_round(routes: Routes, indices: Sequence[int], round_number: int, epoch: int) -> Iterator[FeedRequest]:
    start = 0
    for micro_batch, size in enumerate(routes.micro_batch_sizes(len(indices))):
        route = routes.micro_batch(size)
        if route is not None:
            mine = indices[start + route.interval.first : start + route.interval.end]
            yield FeedRequest(round_number, micro_batch, tuple(mine), epoch)
        start += size


def stage_inputs(module: StageModule, batch: Batch) -> list[torch.Tensor]:
    """The first stage's inputs, on its device. Whole numbers become fractions where the graph has these: a file of texts may have
    samples with nothing else. Raises EdgeswarmError (DATA_FAILED) for another shape or type than the graph's.
    """
    which = ", ".join(map(str, batch.indices[:_NAMED])) + (" and others" if len(batch.indices) > _NAMED else "")
    try:
        tensors = flatten(module.graph.input_structure, model_arguments(batch.inputs))
    except ValueError as error:
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"Samples {which} are made otherwise than those with which the model was exported: {error}.",
            "Let the dataset or the transform give all samples the same parts.",
        ) from error
    for index, (tensor, value) in enumerate(zip(tensors, module.graph.inputs, strict=True)):
        if tuple(tensor.shape) != value.with_batch(len(batch.indices) or len(tensor)):
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"Samples {which} make an input of shape {tuple(tensor.shape[1:])}, and the model was exported with "
                f"{value.with_batch(0)[1:]}.",
                "Let the transform bring all samples to one shape, those of an evaluation too.",
            )
        wanted: torch.dtype = getattr(torch, value.dtype)
        if tensor.dtype != wanted and wanted.is_floating_point and not tensor.is_floating_point():
            tensors[index] = tensor.to(wanted)
        elif tensor.dtype != wanted:
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"Samples {which} make an input of {str(tensor.dtype).removeprefix('torch.')}, and the model was exported with "
                f"{value.dtype}.",
                "Let the dataset or the transform give all samples one element type: .float(), say.",
            )
    return module.arranged([tensor.to(module.device) for tensor in tensors])


def to_device(value: Any, device: torch.device) -> Any:
    """The targets with every tensor among them on the device."""
    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuilt(value, (to_device(item, device) for item in value))
    return value
