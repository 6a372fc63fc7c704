"""Labels out of range, the commonest mistake in a loss, said in terms of the data set. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import EdgeswarmError, ErrorCode, said_by

if TYPE_CHECKING:
    import torch

#: What cross_entropy, nll_loss, gather and one_hot say; on a card they all say the same.
_OUT_OF_RANGE = re.compile(r"out of (bounds|range)|Class values must|device-side assert", re.IGNORECASE)
#: cross_entropy leaves a target of this value out.
_IGNORED = -100


def label_error(
    error: Exception, output: Any, targets: Any, *, indices: Sequence[int], where: str, dataset: str = "dataset"
) -> EdgeswarmError | None:
    """DATA_FAILED that names item, label and number of classes, for what a loss raised; None where labels aren't to blame.

    output: as the loss got it; targets: on the host; the batch in dimension 0. indices: of the batch's items in the data set.
    where: the device. dataset: what the data set is called.
    """
    if not _OUT_OF_RANGE.search(str(error)):
        return None
    for found in _integers(targets):
        for classes in _class_counts(output, found):
            wrong = (found >= classes) | ((found < 0) & (found != _IGNORED))
            if not bool(wrong.any()):
                continue
            place = [int(number) for number in wrong.nonzero()[0]]
            label = int(found[tuple(place)])
            row = place[0] if place else 0
            item = f"Item {indices[row]}" if row < len(indices) else "An item"
            largest = max(label, int(found.max()))
            more = f", or give the model's last layer {largest + 1} outputs" if largest >= classes else ""
            return EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"{item} of the {dataset} has the label {label} among its targets, but the model's output has {classes} classes, "
                f"0 to {classes - 1} (the loss on {where} says {said_by(error)}).",
                f"Let the labels run from 0 to {classes - 1}{more}; "
                f"cross_entropy leaves out targets of {_IGNORED}, its ignore_index.",
            )
    return None


def _integers(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of whole numbers in nested targets."""
    for leaf in _tensors(value):
        if not (leaf.is_floating_point() or leaf.is_complex()) and str(leaf.dtype) != "torch.bool":
            yield leaf


def _class_counts(output: Any, labels: torch.Tensor) -> Iterator[int]:
    """How many classes an output can have for such labels: [rows, classes, ...] or [rows, ..., classes]."""
    for scores in _tensors(output):
        if not scores.is_floating_point() or scores.dim() != labels.dim() + 1:
            continue
        shape, wanted = tuple(scores.shape), tuple(labels.shape)
        if shape[:-1] == wanted:
            yield shape[-1]
        elif (shape[0], *shape[2:]) == wanted:
            yield shape[1]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "is_floating_point") and hasattr(value, "shape"):
        yield value
