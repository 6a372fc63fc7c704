"""Items of a data set <-> bytes, without pickle, and the batches that are made of them.

Consecutive items of one structure and equal shapes are a block: each of their leaves is one column with a row for each
item, so that a thousand small images are one tensor, and a batch is a few rows of it.

    item 0  ({"image": uint8[8, 8]}, 3)            column 0  uint8[n, 8, 8]
    item 1  ({"image": uint8[8, 8]}, 1)     ->     column 1  int64[n]
    ...

Kinds of leaves: a tensor, a numpy array or scalar, Python's bool, int and float, and text (a column of strings).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ..errors import EdgeswarmError, ErrorCode
from ..json_tree import DEEPEST, from_tree
from .fetch import SamplePart
from .tensor_file import DTYPES, read_tensors, write_tensors

SAMPLES_FORMAT = "edgeswarm-samples/1"

_NUMBERS: dict[type, tuple[str, torch.dtype]] = {
    bool: ("bool", torch.bool),
    int: ("int", torch.int64),
    float: ("float", torch.float64),
}
# How a row of a column becomes a leaf again.
_READ: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda row: row,
    "array": lambda row: row.numpy(),
    "scalar": lambda row: row.numpy()[()],
    "bool": lambda row: row.item(),
    "int": lambda row: row.item(),
    "float": lambda row: row.item(),
}
_TEXT = "text"
_ONE_NUMBER = ("scalar", "bool", "int", "float")

Column = torch.Tensor | list[str]


@dataclass(frozen=True)
class SampleBlock:
    """Items of one structure. tree: JSON form of one item, with the kind of each leaf. columns: one for each leaf."""

    tree: object
    kinds: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: int

    @property
    def bytes(self) -> int:
        """What the columns take; texts count as they would in a file."""
        return sum(
            column.nbytes if isinstance(column, torch.Tensor) else sum(map(len, column)) for column in self.columns
        )

    def item(self, row: int) -> object:
        """The item of a row as the data set gave it. Its tensors are copies: a transform may write into them."""
        return self._rebuild(lambda index: self._leaf(index, row))

    def collate(self, rows: Sequence[int]) -> object:
        """The batch of some rows, as `collate` would make it of their items, without making the items."""
        return self._rebuild(lambda index: _take(self.columns[index], rows))

    def joined(self, columns: tuple[Column, ...], rows: int) -> SampleBlock:
        return SampleBlock(self.tree, self.kinds, columns, rows)

    def fits(self, other: SampleBlock) -> bool:
        """Whether rows of both make one batch."""
        return (
            self.tree == other.tree
            and self.kinds == other.kinds
            and all(_row_type(a) == _row_type(b) for a, b in zip(self.columns, other.columns, strict=True))
        )

    def _leaf(self, index: int, row: int) -> object:
        column = self.columns[index]
        return _READ[self.kinds[index]](column[row].clone()) if isinstance(column, torch.Tensor) else column[row]

    def _rebuild(self, leaf: Callable[[int], object]) -> object:
        return _fill(self.tree, leaf)


def _fill(tree: object, leaf: Callable[[int], object]) -> object:
    def by_index(index: object) -> object:
        if type(index) is not int or index < 0:
            raise ValueError("a leaf is the number of a column")
        return leaf(index)

    return from_tree(tree, by_index)


def _take(column: Column, rows: Sequence[int]) -> object:
    if isinstance(column, list):
        return [column[row] for row in rows]
    first = rows[0] if rows else 0
    if list(rows) == list(range(first, first + len(rows))):
        return column[first : first + len(rows)].clone()  # the user's loss may write into its targets
    return column[torch.tensor(rows, dtype=torch.int64)]


def _row_type(column: Column) -> object:
    return (column.dtype, column.shape[1:]) if isinstance(column, torch.Tensor) else _TEXT


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
    return default_collate(list(values))


def collate_rows(places: Sequence[tuple[SampleBlock, int]]) -> Any:
    """The batch of some rows of some blocks. Raises EdgeswarmError (DATA_FAILED) where they don't make one batch."""
    block = places[0][0]
    if all(other is block for other, _ in places):
        return block.collate([row for _, row in places])
    if not all(block.fits(other) for other, _ in places):
        return collate_items([other.item(row) for other, row in places])
    columns: list[Column] = []
    for index in range(len(block.columns)):
        cells = [other.columns[index][row] for other, row in places]
        columns.append(torch.stack(cells) if isinstance(cells[0], torch.Tensor) else cells)  # type: ignore[arg-type]
    return block.joined(tuple(columns), len(places)).collate(range(len(places)))


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
    blocks = blocks_of([part_of(item, part) for item in items])
    tensors: dict[str, torch.Tensor] = {}
    described = []
    for number, block in enumerate(blocks):
        texts = {}
        for index, column in enumerate(block.columns):
            if isinstance(column, torch.Tensor):
                tensors[f"{number}.{index}"] = column
            else:
                texts[str(index)] = column
        described.append({"tree": block.tree, "kinds": block.kinds, "rows": block.rows, "texts": texts})
    return write_tensors(tensors, (SAMPLES_FORMAT, json.dumps(described)))


def part_of(item: Any, part: SamplePart) -> Any:
    """inputs, targets, or (inputs, targets) of an item. Raises EdgeswarmError (DATA_FAILED) where it is no pair."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        shown = f"{len(item)} values" if isinstance(item, (tuple, list)) else f"a {_type_name(item)}"
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"An item of the dataset is {shown}, not a pair (inputs, targets).",
            "Return (inputs, targets); inputs may be a tuple or a dict.",
        )
    return tuple(item) if part is SamplePart.BOTH else item[0 if part is SamplePart.INPUTS else 1]


def blocks_of(values: Sequence[Any]) -> list[SampleBlock]:
    """Values as blocks, in order; a new block begins where structure, type or shape changes."""
    blocks: list[SampleBlock] = []
    pending: list[list[Any]] = []
    signature: object = None
    tree: object = None
    kinds: tuple[str, ...] = ()
    for value in values:
        leaves: list[Any] = []
        found_kinds: list[str] = []
        found = _flatten(value, leaves, found_kinds)
        found_signature = (json.dumps(found), found_kinds, [_leaf_type(leaf) for leaf in leaves])
        if pending and found_signature != signature:
            blocks.append(_block(tree, kinds, pending))
            pending = []
        signature, tree, kinds = found_signature, found, tuple(found_kinds)
        pending.append(leaves)
    if pending:
        blocks.append(_block(tree, kinds, pending))
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
    leaf_kind, leaf = _leaf(value)
    leaves.append(leaf)
    kinds.append(leaf_kind)
    return {"leaf": len(leaves) - 1}


def _leaf(value: Any) -> tuple[str, Any]:
    kind = type(value)
    if kind is str:
        return _TEXT, value
    if kind in _NUMBERS and (kind is not int or -(2**63) <= value < 2**63):
        return _NUMBERS[kind][0], value
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES.values() and value.layout is torch.strided:
        return "tensor", value.detach()
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            native = np.asarray(value, dtype=value.dtype.newbyteorder("="))
            tensor = torch.from_numpy(np.array(native, order="C", copy=True))
        except (TypeError, ValueError):
            raise _cannot_be_sent(f"a numpy {value.dtype} value") from None
        if tensor.dtype in DTYPES.values():
            return ("array" if isinstance(value, np.ndarray) else "scalar"), tensor
    raise _cannot_be_sent(f"a {_type_name(value)}")


def _cannot_be_sent(what: str) -> EdgeswarmError:
    remedy = "Return tensors, numpy arrays, numbers or texts in tuples, lists or dicts."
    if "PIL" in what:
        remedy = "Return a tensor or an array instead: numpy.asarray(image), and the rest in the job's `transform`."
    return EdgeswarmError(ErrorCode.DATA_FAILED, f"An item of the dataset holds {what}, which can't be sent.", remedy)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _leaf_type(leaf: Any) -> object:
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else None


def _block(tree: object, kinds: tuple[str, ...], rows: list[list[Any]]) -> SampleBlock:
    columns: list[Column] = []
    dtypes = dict(_NUMBERS.values())
    for kind, cells in zip(kinds, zip(*rows, strict=True), strict=True):
        if kind == _TEXT:
            columns.append(list(cells))
        elif kind in dtypes:
            columns.append(torch.tensor(cells, dtype=dtypes[kind]))
        else:
            columns.append(torch.stack(cells))
    return SampleBlock(tree, kinds, tuple(columns), len(rows))


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
    rows, kinds = document["rows"], tuple(document["kinds"])
    if type(rows) is not int or rows < 1:
        raise ValueError("a block of samples has at least one row")
    columns: list[Column] = []
    for index, kind in enumerate(kinds):
        column: Column = document["texts"][str(index)] if kind == _TEXT else tensors[f"{number}.{index}"]
        if kind != _TEXT and kind not in _READ:
            raise ValueError(f"unknown kind of leaf {str(kind)[:20]!r}")
        if kind == _TEXT and not (isinstance(column, list) and all(isinstance(text, str) for text in column)):
            raise ValueError("a column of texts holds something else")
        if isinstance(column, torch.Tensor) and (column.dim() == 0 or (kind in _ONE_NUMBER and column.dim() != 1)):
            raise ValueError("a column has the wrong shape")
        if len(column) != rows:
            raise ValueError(f"a column has {len(column)} rows, not {rows}")
        columns.append(column)
    block = SampleBlock(document["tree"], kinds, tuple(columns), rows)
    _fill(block.tree, lambda index: columns[index])  # raises for leaves that are not there
    return block
