"""Which items don't make one batch, and why: looked for once they don't."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch

from ..errors import EdgeswarmError
from .tensor_samples import collate_items

_SHOWN = 12  # parts of a tuple, a list or a dict


def describe_batch(value: Any, *, most: int = _SHOWN) -> str:
    """What inputs or targets are made of, as `float32 [4, 1, 28, 28]`; a tuple, list or dict as one of its parts.

    most: parts of each that are shown.
    """
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        shown = [f"{key}: {describe_batch(part, most=most)}" for key, part in islice(value.items(), most)]
        return "{" + _first(shown, value) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + _first([describe_batch(part, most=most) for part in value[:most]], value) + ")"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def _first(shown: Sequence[str], parts: Sized) -> str:
    more = len(parts) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


def collate_named(items: Sequence[Any], indices: Sequence[int]) -> Any:
    """`collate_items` of the data set's items with these indices.

    Raises EdgeswarmError (DATA_FAILED) that names two which don't fit each other, and what each is.
    """
    try:
        return collate_items(items)
    except EdgeswarmError as error:
        raise name_misfits(items, indices, error) from error


def name_misfits(items: Sequence[Any], indices: Sequence[int], error: EdgeswarmError) -> EdgeswarmError:
    """The error with the first item and the first that doesn't fit it; as it is where no two can be named."""
    for item, index in zip(items[1:], indices[1:], strict=False):
        try:
            collate_items([items[0], item])
        except EdgeswarmError:
            one, other = describe_batch(items[0]), describe_batch(item)
            if one == other:  # by their first parts
                one, other = (describe_batch(each, most=sys.maxsize) for each in (items[0], item))
            if one == other:
                return error  # of a kind that makes no batch at all, such as images
            return EdgeswarmError(
                error.code,
                f"Items {indices[0]} and {index} of the dataset don't make one batch: one is {one}, the other {other}.",
                error.remedy,
                detail=error.message,
            )
    return error
