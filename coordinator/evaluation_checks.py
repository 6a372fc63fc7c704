"""What can be wrong with a job's evaluation, found on the coordinator's machine before any device is asked for anything.

Imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import LOSS, Dataset, Job, model_arguments
from edgeswarm.job_file import user_code
from edgeswarm.wire.tensor_misfits import describe_batch

from .job_checks import SAMPLE_ROWS, sample_batch


def check_evaluation(job: Job, model: torch.nn.Module, dataset: Dataset, *, training_inputs: Any, folder: Path) -> int:
    """Try out the evaluation on the set's first items: reading, transform, model, loss and each metric, once.

    training_inputs: of a batch, with which the model is exported. folder: of the job file, so that an error in it names the
    line. Returns how many items the set has. Leaves the model's modes and buffers as they were. Raises EdgeswarmError
    (JOB_INVALID, JOB_FILE, DATA_FAILED).
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise _invalid(
            f"evaluation_dataset() returns a {type(dataset).__name__}, which has no length or no items by index.",
            "Return an object with __len__ and __getitem__, as dataset() does.",
        )
    length = int(_tried(lambda: len(dataset), folder, "asking for the evaluation dataset's length"))
    if length < 1:
        raise _invalid("The evaluation dataset is empty.", "Let evaluation_dataset() return at least one sample.")
    as_training = dataclasses.replace(job, transform=job.evaluation_transform or job.transform)
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            inputs, targets = sample_batch(as_training, dataset, range(min(SAMPLE_ROWS, length)), folder=folder)
            _check_shapes(inputs, training_inputs)
            args, kwargs = model_arguments(inputs)
            model.eval()
            output = _tried(lambda: model(*args, **kwargs), folder, "running the model in evaluation mode")
            for name, metric in {LOSS: job.loss, **job.metrics}.items():
                doing = "running the loss" if name == LOSS else f"running the metric {name!r}"
                _check_metric(name, _tried(partial(metric, output, targets), folder, doing))
    except EdgeswarmError as error:
        message = error.message.replace("of the dataset", "of the evaluation dataset")
        if "evaluation" not in message:
            message = f"On the evaluation dataset: {message}"
        raise EdgeswarmError(error.code, message, error.remedy, detail=error.detail) from error
    finally:
        for module, mode in modes:
            module.training = mode
    return length


def _check_shapes(inputs: Any, training_inputs: Any) -> None:
    """Whether the model, exported with the training's inputs, takes these, too."""
    found, expected = (
        [leaf for leaf in pytree.tree_leaves(each) if isinstance(leaf, torch.Tensor)]
        for each in (inputs, training_inputs)
    )
    if len(found) == len(expected) and any(
        (mine.shape[1:], mine.dtype) != (other.shape[1:], other.dtype)
        for mine, other in zip(found, expected, strict=True)
    ):
        raise _invalid(
            f"The evaluation dataset's inputs are {describe_batch(inputs)}, and the training's {describe_batch(training_inputs)}"
            " (the first number is the samples'): devices have the model for one shape and type.",
            "Let evaluation_transform make inputs of the shape and type that transform makes.",
        )


def _check_metric(name: str, result: Any) -> None:
    values = result if isinstance(result, tuple) else (result, 1)
    wanted = "Return one number, the mean over the rows that it is given, or (sum, count)."
    if len(values) != 2:
        raise _invalid(f"The metric {name!r} returns {len(values)} values.", wanted)
    for value in values:
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise _invalid(f"The metric {name!r} returns a tensor of shape {tuple(value.shape)}.", wanted)
        try:
            float(value)
        except (TypeError, ValueError):
            raise _invalid(f"The metric {name!r} returns a {type(value).__name__}.", wanted) from None


def _tried(function: Callable[[], Any], folder: Path, doing: str) -> Any:
    with user_code(folder, doing):
        return function()


def _invalid(message: str, remedy: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.JOB_INVALID, message, remedy)
