"""Items of a data set <-> bytes, without pickle, and the batches that are made of them.

Consecutive items of one structure and equal shapes are a block: each of their leaves is one column with a row for each
item, so that a thousand small images are one tensor, and a batch is a few rows of it.

    item 0  ({"image": uint8[8, 8]}, 3)            column 0  uint8[n, 8, 8]
    item 1  ({"image": uint8[8, 8]}, 1)     ->     column 1  int64[n]
    ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import EdgeswarmError, ErrorCode
from ..json_tree import DEEPEST, from_tree
from .sample_stream import SamplePart
from .tensor_columns import (
    Column,
    batch_of,
    batch_of_leaves,
    column_of,
    kind_of_leaf,
    leaf_type,
    read_column,
    type_name,
)
from .tensor_file import read_tensors, write_tensors

SAMPLES_FORMAT = "edgeswarm-samples/2"


@dataclass(frozen=True)
class SampleBlock:
    """Items of one structure. tree: JSON form of one item, whose leaves are numbers of columns."""

    tree: object
    columns: tuple[Column, ...]
    rows: int

    def item(self, row: int) -> object:
        """The item of a row as the data set gave it. Its tensors are copies: a transform may write into them."""
        return _fill(self.tree, lambda index: self.columns[index].leaf(row))

    def fits(self, other: SampleBlock) -> bool:
        """Whether rows of both make one batch."""
        return (
            self.tree == other.tree
            and len(self.columns) == len(other.columns)
            and all(a.row_type == b.row_type for a, b in zip(self.columns, other.columns, strict=True))
        )


def _fill(tree: object, leaf: Callable[[int], object]) -> object:
    def by_index(index: object) -> object:
        if type(index) is not int or index < 0:
            raise ValueError("a leaf is the number of a column")
        return leaf(index)

    return from_tree(tree, by_index)


def collate(values: Sequence[Any]) -> Any:
    """The batch of some values, leaf by leaf with PyTorch's `default_collate`.

    Other than there a tuple stays a tuple, since how the model is called depends on it, and None stays None.
    Raises what `default_collate` raises, among them RuntimeError for tensors of unequal shapes.
    """
    first = values[0]
    if all(value is None for value in values):
        return None
    if isinstance(first, Mapping):
        return {key: collate([value[key] for value in values]) for key in first}
    if type(first) in (tuple, list):
        if any(len(value) != len(first) for value in values):
            raise RuntimeError("the samples of one batch have lists or tuples of unequal lengths")
        columns = [collate([value[index] for value in values]) for index in range(len(first))]
        return tuple(columns) if type(first) is tuple else columns
    return batch_of_leaves(values)


def collate_rows(places: Sequence[tuple[SampleBlock, int]]) -> Any:
    """The batch of some rows of some blocks, as `collate` would make it of their items, without making the items.

    Raises EdgeswarmError (DATA_FAILED) where they don't make one batch.
    """
    block = places[0][0]
    if not all(other is block or block.fits(other) for other in {id(other): other for other, _ in places}.values()):
        return collate_items([other.item(row) for other, row in places])
    return _fill(block.tree, lambda index: batch_of([(other.columns[index], row) for other, row in places]))


def collate_items(values: Sequence[Any]) -> Any:
    """`collate`, with an error that a person understands where the items don't make one batch."""
    try:
        return collate(values)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"These samples don't make one batch: {error}",
            "Let the dataset or the transform return tensors of one shape for every sample (pad or crop them).",
        ) from error


# --- items -> bytes ---------------------------------------------------------------------------------------------------


def encode_items(items: Sequence[Any], part: SamplePart) -> bytes:
    """The bytes of some items of a data set, each a pair (inputs, targets), or of one part of each.

    Nothing is converted: uint8 stays uint8. Raises EdgeswarmError (DATA_FAILED) that says what can't be sent.
    """
    return encode_values([part_of(item, part) for item in items])


def encode_values(values: Sequence[Any]) -> bytes:
    """`encode_items` of what is wanted of them already."""
    tensors: dict[str, torch.Tensor] = {}
    described = []
    for number, block in enumerate(blocks_of(values)):
        columns = []
        for index, column in enumerate(block.columns):
            tensors |= {f"{number}.{index}{suffix}": tensor for suffix, tensor in column.tensors().items()}
            columns.append([column.kind, column.described()])
        described.append({"tree": block.tree, "columns": columns, "rows": block.rows})
    return write_tensors(tensors, (SAMPLES_FORMAT, json.dumps(described)))


def part_of(item: Any, part: SamplePart) -> Any:
    """inputs, targets, or (inputs, targets) of an item. Raises EdgeswarmError (DATA_FAILED) where it is no pair."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        shown = f"{len(item)} values" if isinstance(item, (tuple, list)) else f"a {type_name(item)}"
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"An item of the dataset is {shown}, not a pair (inputs, targets).",
            "Return (inputs, targets); inputs may be a tuple or a dict. "
            "For items that are dicts name the job's input_columns and target_columns.",
        )
    return tuple(item) if part is SamplePart.BOTH else item[0 if part is SamplePart.INPUTS else 1]


def blocks_of(values: Sequence[Any]) -> list[SampleBlock]:
    """Values as blocks, in order; a new block begins where structure, type or shape changes."""
    blocks: list[SampleBlock] = []
    pending: list[list[Any]] = []
    signature: object = None
    tree: object = None
    kinds: list[str] = []

    def end_block() -> None:
        if pending:
            columns = [column_of(kind, leaves) for kind, leaves in zip(kinds, zip(*pending, strict=True), strict=True)]
            blocks.append(SampleBlock(tree, tuple(columns), len(pending)))

    for value in values:
        leaves: list[Any] = []
        found_kinds: list[str] = []
        found = _flatten(value, leaves, found_kinds)
        found_signature = (found, found_kinds, [leaf_type(leaf) for leaf in leaves])
        if found_signature != signature:
            end_block()
            pending = []
        signature, tree, kinds = found_signature, found, found_kinds
        pending.append(leaves)
    end_block()
    return blocks


def _flatten(value: Any, leaves: list[Any], kinds: list[str], depth: int = 0) -> object:
    """The JSON form of a value (see json_tree.py) whose leaves are numbers of columns."""
    if depth > DEEPEST:
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"An item of the dataset is more than {DEEPEST} levels deep.",
            "Return flatter tuples, lists or dicts.",
        )
    kind = type(value)
    if value is None:
        return None
    if kind in (tuple, list):
        return {kind.__name__: [_flatten(item, leaves, kinds, depth + 1) for item in value]}
    if kind is dict and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, _flatten(item, leaves, kinds, depth + 1)] for key, item in value.items()]}
    leaf_kind, leaf = kind_of_leaf(value)
    leaves.append(leaf)
    kinds.append(leaf_kind)
    return {"leaf": len(leaves) - 1}


# --- bytes -> items ---------------------------------------------------------------------------------------------------


def decode_items(data: bytes | bytearray | memoryview) -> list[object]:
    """The items (or their parts) whose bytes these are. Raises ValueError for bytes that are none."""
    return [block.item(row) for block in decode_blocks(data) for row in range(block.rows)]


def decode_blocks(data: bytes | bytearray | memoryview) -> list[SampleBlock]:
    """The items as blocks, whose columns are views of `data` where that is writable. Raises ValueError."""
    tensors, metadata = read_tensors(data)
    if SAMPLES_FORMAT not in metadata:
        raise ValueError(f"these are no samples in the format {SAMPLES_FORMAT}")
    try:
        described = json.loads(metadata[SAMPLES_FORMAT])
        return [_read_block(number, document, tensors) for number, document in enumerate(described)]
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the description of samples: {error!r}") from error


def _read_block(number: int, document: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> SampleBlock:
    rows = document["rows"]
    if type(rows) is not int or rows < 1:
        raise ValueError("a block of samples has at least one row")
    columns = [
        read_column(kind, described, tensors, f"{number}.{index}")
        for index, (kind, described) in enumerate(document["columns"])
    ]
    if any(column.rows != rows for column in columns):
        raise ValueError(f"a column has {[column.rows for column in columns]} rows, not {rows}")
    block = SampleBlock(document["tree"], tuple(columns), rows)
    _fill(block.tree, lambda index: block.columns[index])  # raises for leaves that are not there
    return block
