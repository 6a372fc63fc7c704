"""A job's data set as the rest of edgeswarm sees it: read by index, every item a pair (inputs, targets).

An item of a Hugging Face data set is a dict. The job names the columns that it needs:

    {"ids": [3, 1, 4], "mask": [1, 1, 0], "label": 2}
        input_columns=["ids", "mask"], target_columns="label"
    ({"ids": int64[3], "mask": int64[3]}, 2)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import EdgeswarmError, ErrorCode

if TYPE_CHECKING:
    from .job import Dataset

Columns = str | tuple[str, ...]


class ColumnPairs:
    """A data set of dicts as pairs. inputs, targets: one name gives that value alone, several a dict of them.

    called: "dataset" or "evaluation dataset", for messages. Lists of numbers become arrays (see `as_array`).
    """

    def __init__(self, dataset: Dataset, inputs: Columns, targets: Columns, *, called: str = "dataset") -> None:
        self._dataset = dataset
        self._inputs = inputs
        self._targets = targets
        self._called = called

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        item = self._dataset[index]
        if not isinstance(item, Mapping):
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"Item {index} of the {self._called} is {a(item)}, not a dict of columns.",
                "Leave input_columns and target_columns away where an item is a pair (inputs, targets) already.",
            )
        return self._chosen(item, index, self._inputs), self._chosen(item, index, self._targets)

    def _chosen(self, item: Mapping[str, Any], index: int, columns: Columns) -> Any:
        if isinstance(columns, str):
            return as_array(self._column(item, index, columns))
        return {name: as_array(self._column(item, index, name)) for name in columns}

    def _column(self, item: Mapping[str, Any], index: int, name: str) -> Any:
        if name not in item:
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"Item {index} of the {self._called} has no column {name!r}; it has {_listed(item)}.",
                "Correct input_columns or target_columns in the job file.",
            )
        return item[name]


def as_pairs(
    dataset: Any, inputs: Columns | None, targets: Columns | None, *, function: str = "dataset", called: str = "dataset"
) -> Dataset:
    """What the job's function of that name returned, as pairs where it names columns.

    called: the data set, for messages. Raises EdgeswarmError (JOB_INVALID) where it can't be read by index.
    """
    _check_reads_by_index(dataset, function)
    if inputs is None or targets is None:
        pairs: Dataset = dataset
        return pairs
    return ColumnPairs(dataset, inputs, targets, called=called)


def as_array(value: Any) -> Any:
    """A list of numbers, or of equally long lists of them, as an array; anything else as it is.

    Whole numbers become int64, fractions float32 (what torch.tensor makes of them), bool stays bool.
    """
    if not isinstance(value, list) or not _holds_numbers(value):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal lengths
        return value
    if array.size == 0:
        return array.astype(np.int64)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def a(value: object) -> str:
    """A value's kind with its article, for messages."""
    noun = type(value).__name__
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _holds_numbers(value: list[Any]) -> bool:
    return all(
        _holds_numbers(item) if isinstance(item, list) else type(item) in (bool, int, float) and _fits(item)
        for item in value
    )


def _fits(number: float) -> bool:
    return not isinstance(number, int) or -(2**63) <= number < 2**63


def _check_reads_by_index(dataset: Any, function: str) -> None:
    if isinstance(dataset, Mapping) and dataset and all(isinstance(name, str) for name in dataset):
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"{function}() returns {a(dataset)} of several data sets: {_listed(dataset)}.",
            f"Return one of them, such as ...[{next(iter(dataset))!r}].",
        )
    kinds = {kind.__name__ for kind in type(dataset).__mro__}
    # PyTorch's IterableDataset inherits a __getitem__ that only raises, and may have a length.
    has_length_and_items = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if has_length_and_items and "IterableDataset" not in kinds:
        return
    remedy = "Return an object with __len__ and __getitem__."
    if "DataLoader" in kinds:
        remedy += (
            " edgeswarm shuffles and makes the batches: instead of a DataLoader, give it the dataset that it reads."
        )
    if "IterableDataset" in kinds:
        remedy += " Samples are shuffled and shared out by index: load the data without streaming, or write it to disk."
    raise EdgeswarmError(
        ErrorCode.JOB_INVALID,
        f"{function}() returns {a(dataset)}, which has no length or no items by index.",
        remedy,
    )


def _listed(names: Mapping[Any, Any]) -> str:
    """The first names, as a message shows them."""
    shown = ", ".join(repr(name) for name in itertools.islice(names, 12))
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
