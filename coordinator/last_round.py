"""The last round of an epoch, which may have few samples: fewer than some layer can take at once. Pure.

A BatchNorm over one position makes NaN of a single sample, where PyTorch alone would say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import Layer
from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder


def check_batches(layers: Sequence[Layer], order: SampleOrder) -> None:
    """Whether every layer can take each round's samples at once. Raises EdgeswarmError (JOB_INVALID) naming the layer."""
    neediest = max(layers, key=lambda layer: layer.least_batch)
    least = neediest.least_batch
    if order.batch_size < least:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"batch_size is {order.batch_size}, but the layer {neediest.name} needs at least {least} samples at once.",
            f"Choose a batch_size of {least} or more.",
        )
    if 0 < order.rest < least:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"{_last_round(order)}, but the layer {neediest.name} needs at least {least} at once.",
            "Choose another batch_size, or drop_last=True in the job: what is left over of an epoch is left out then.",
        )


def check_plan(plan: Plan, layers: Sequence[Layer], order: SampleOrder) -> None:
    """Whether every replica gets enough samples, or none, in the last round too. Raises EdgeswarmError (PLAN_INVALID)."""
    problem = plan.too_few_samples(order.rest, [layer.least_batch for layer in layers]) if order.rest else ""
    if problem:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID,
            f"{_last_round(order)}. {problem}.",
            "Choose another batch_size or --micro-batch, or drop_last=True in the job, so that no rest is left.",
        )


def _last_round(order: SampleOrder) -> str:
    samples = f"{order.rest} sample{'' if order.rest == 1 else 's'}"
    return f"The last round of an epoch has {samples} ({order.dataset_length} in batches of {order.batch_size})"
