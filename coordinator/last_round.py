"""The last round of an epoch, which may have few samples: fewer than some layer can take at once. Pure.

A BatchNorm over one position makes NaN of a single sample, where PyTorch alone would say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import Layer
from edgeswarm.plan import Plan


def check_batches(layers: Sequence[Layer], *, dataset_length: int, batch_size: int) -> None:
    """Whether every layer can take each round's samples at once. Raises EdgeswarmError (JOB_INVALID) naming the layer."""
    neediest = max(layers, key=lambda layer: layer.least_batch)
    least = neediest.least_batch
    if batch_size < least:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"batch_size is {batch_size}, but the layer {neediest.name} needs at least {least} samples at once.",
            f"Choose a batch_size of {least} or more.",
        )
    rest = dataset_length % batch_size
    if 0 < rest < least:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"The last round of an epoch has {_samples(rest)} ({dataset_length} in batches of {batch_size}), "
            f"but the layer {neediest.name} needs at least {least} at once.",
            f"Choose another batch_size, or leave {_samples(rest)} out of the dataset.",
        )


def check_plan(plan: Plan, layers: Sequence[Layer], *, dataset_length: int, batch_size: int) -> None:
    """Whether every replica gets enough samples, or none, in the last round too. Raises EdgeswarmError (PLAN_INVALID)."""
    rest = dataset_length % batch_size
    problem = plan.too_few_samples(rest, [layer.least_batch for layer in layers]) if rest else ""
    if problem:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID,
            f"The last round of an epoch has {_samples(rest)} ({dataset_length} in batches of {batch_size}). {problem}.",
            "Choose another batch_size or --micro-batch, or leave items out of the dataset, so that no rest is left.",
        )


def _samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"
