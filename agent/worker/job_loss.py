"""The job's loss and metrics, called on a device: where labels are out of range, the item is named.

On a card they get their targets there. A module's own tensors (weights of classes) go there once; those that a function made
by itself stay where it made them, which the person is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.job import Job
from edgeswarm.labels import label_error

from .accelerator import wait_for
from .stage_samples import to_device

# What torch says of tensors that are not all at one place.
_ELSEWHERE = re.compile(r"on the (same|expected) device")


def move_modules(job: Job, device: torch.device) -> None:
    """A loss or a metric that is a module is on the device from now on."""
    for function in (job.loss, *job.metrics.values()):
        if isinstance(function, torch.nn.Module):
            function.to(device)


def called(
    function: Callable[[Any, Any], Any],
    output: Any,
    targets: Any,
    *,
    indices: Sequence[int],
    device: str,
    on: torch.device,
    dataset: str = "dataset",
) -> Any:
    """What a loss or a metric returns. targets: on the host; the function gets them on `on`, where the output is.

    indices: of the batch's items in the data set, which is called `dataset` where a person reads it. device: its name.
    Raises what the function raises, but EdgeswarmError for a label that the model has no output for (DATA_FAILED), and for
    tensors of the function's that are not on the card (JOB_INVALID).
    """
    try:
        result = function(output, to_device(targets, on))
        wait_for(on.type)  # a card tells of a wrong label when it is waited for, and nothing else from then on
        return result
    except Exception as error:  # the user's code may raise anything
        labels = label_error(error, output, targets, indices=indices, where=device, dataset=dataset)
        if labels is not None:
            raise labels from error
        if on.type != "cpu" and _ELSEWHERE.search(str(error)):
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"The loss or a metric has tensors of its own that are not on the card of {device}: {said_by(error)}.",
                "Make them where its arguments are (device=output.device), or let it be a torch.nn.Module with buffers.",
            ) from error
        raise
