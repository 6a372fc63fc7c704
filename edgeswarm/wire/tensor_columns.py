"""The columns of a block of samples: one leaf of every item, as tensors without one object for each row.

    TensorColumn   leaves of one shape     values  [rows, *shape]
    PackedColumn   leaves of any length    data    uint8[all], one after the other      ends  int64[rows]

Kinds of leaves: a tensor, a numpy array or scalar, Python's bool, int and float; packed: text, bytes, and PIL images, whose
data are their pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ..errors import EdgeswarmError, ErrorCode
from .pillow_images import ImageForm, is_image, put_together, take_apart
from .tensor_file import DTYPES

NUMBERS: dict[type, tuple[str, torch.dtype]] = {
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
_ONE_NUMBER = ("scalar", "bool", "int", "float")
TEXT, BYTES, IMAGE = "text", "bytes", "image"
_PACKED = (TEXT, BYTES, IMAGE)
# JSON and Python's texts may hold halves of surrogate pairs.
_ENCODING, _ENCODING_ERRORS = "utf-8", "surrogatepass"


class TensorColumn:
    """Leaves of one shape and type."""

    def __init__(self, kind: str, values: torch.Tensor) -> None:
        self.kind = kind
        self.values = values

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def row_type(self) -> object:
        """What must be equal where rows of several columns make one batch."""
        return self.kind, self.values.dtype, self.values.shape[1:]

    def leaf(self, row: int) -> object:
        """The leaf as the data set gave it; a copy, since a transform may write into it."""
        return _READ[self.kind](self.values[row].clone())

    def batch(self, rows: Sequence[int]) -> torch.Tensor:
        first = rows[0] if rows else 0
        if list(rows) == list(range(first, first + len(rows))):
            return self.values[first : first + len(rows)].clone()  # the user's loss may write into its targets
        return self.values[torch.tensor(rows, dtype=torch.int64)]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"": self.values}

    def described(self) -> None:
        return None


class PackedColumn:
    """Leaves of any length: their bytes one after the other. forms: of images, one a row."""

    def __init__(self, kind: str, data: torch.Tensor, ends: torch.Tensor, forms: Sequence[ImageForm] = ()) -> None:
        self.kind = kind
        self.data = data
        self.ends = ends
        self.forms = forms

    @classmethod
    def of(cls, kind: str, leaves: Sequence[Any]) -> PackedColumn:
        """leaves: texts, bytes, or (form, pixels) of images."""
        contents: list[bytes]
        if kind == TEXT:
            contents = [text.encode(_ENCODING, _ENCODING_ERRORS) for text in leaves]
        else:
            contents = [pixels for _, pixels in leaves] if kind == IMAGE else list(leaves)
        joined = bytearray(b"".join(contents))
        data = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
        ends = torch.tensor(np.cumsum([len(content) for content in contents]), dtype=torch.int64)
        return cls(kind, data, ends, [form for form, _ in leaves] if kind == IMAGE else ())

    @property
    def rows(self) -> int:
        return len(self.ends)

    @property
    def row_type(self) -> object:
        return self.kind

    def leaf(self, row: int) -> object:
        """The leaf as the data set gave it. Raises ImportError for an image where Pillow is missing."""
        first = int(self.ends[row - 1]) if row else 0
        content = self.data.numpy()[first : int(self.ends[row])].tobytes()
        if self.kind == TEXT:
            return str(content, _ENCODING, _ENCODING_ERRORS)
        return put_together(self.forms[row], content) if self.kind == IMAGE else content

    def batch(self, rows: Sequence[int]) -> list[object]:
        if self.kind == IMAGE:
            raise images_make_no_batch()
        return [self.leaf(row) for row in rows]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"": self.data, ".ends": self.ends}

    def described(self) -> list[Any] | None:
        """What the tensors don't hold, for JSON."""
        return [form.to_json() for form in self.forms] if self.kind == IMAGE else None


Column = TensorColumn | PackedColumn
Place = tuple[Column, int]


def batch_of(cells: Sequence[Place]) -> object:
    """The batch of some cells of columns of one `row_type`."""
    column = cells[0][0]
    if all(other is column for other, _ in cells):
        return column.batch([row for _, row in cells])
    if isinstance(column, TensorColumn):
        return torch.stack([other.values[row] for other, row in cells if isinstance(other, TensorColumn)])
    if column.kind == IMAGE:
        raise images_make_no_batch()
    return [other.leaf(row) for other, row in cells]


def batch_of_leaves(leaves: Sequence[Any]) -> Any:
    """The batch of some leaves, with PyTorch's `default_collate`. Raises what that raises."""
    if any(is_image(leaf) for leaf in leaves):
        raise images_make_no_batch()
    return default_collate(list(leaves))


def images_make_no_batch() -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DATA_FAILED,
        "The samples hold PIL images, and a batch is made of tensors.",
        "Let the job's `transform(sample, generator)` make a tensor of one shape of each image, such as "
        "torch.from_numpy(numpy.array(image.resize((224, 224)))).permute(2, 0, 1) / 255.",
    )


# --- leaves -> columns ------------------------------------------------------------------------------------------------


def kind_of_leaf(value: Any) -> tuple[str, Any]:
    """(kind, the value as `column_of` takes it). Raises EdgeswarmError (DATA_FAILED) for what can't be sent."""
    kind = type(value)
    if kind is str:
        return TEXT, value
    if kind is bytes:
        return BYTES, value
    if kind in NUMBERS and (kind is not int or -(2**63) <= value < 2**63):
        return NUMBERS[kind][0], value
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
        raise _cannot_be_sent(f"a numpy {value.dtype} value")
    if isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided
        raise _cannot_be_sent(f"a {'' if is_plain else 'sparse '}tensor of {str(value.dtype).removeprefix('torch.')}")
    if is_image(value):
        try:
            return IMAGE, take_apart(value)
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all three for damaged files
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"An item of the dataset holds an image that can't be read: {error}.",
                "Look at its file, or leave the item out.",
            ) from error
    raise _cannot_be_sent(f"a {type_name(value)}")


def leaf_type(leaf: Any) -> object:
    """What must be equal where leaves of one kind are rows of one column."""
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else None


def column_of(kind: str, leaves: Sequence[Any]) -> Column:
    """The column of leaves of one kind and `leaf_type`."""
    if kind in _PACKED:
        return PackedColumn.of(kind, leaves)
    dtypes = dict(NUMBERS.values())
    return TensorColumn(kind, torch.tensor(leaves, dtype=dtypes[kind]) if kind in dtypes else torch.stack(list(leaves)))


def type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _cannot_be_sent(what: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DATA_FAILED,
        f"An item of the dataset holds {what}, which can't be sent.",
        "Return tensors, numpy arrays, numbers, texts, bytes or PIL images in tuples, lists or dicts; arrays and tensors of "
        f"{', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in DTYPES.values()))} (uint16 as int32, say).",
    )


# --- tensors -> columns -----------------------------------------------------------------------------------------------


def read_column(kind: str, described: Any, tensors: Mapping[str, torch.Tensor], name: str) -> Column:
    """The column whose `tensors()` lie under `name`. Raises ValueError, KeyError or TypeError for what is none."""
    values = tensors[name]
    if kind in _PACKED:
        ends = tensors[f"{name}.ends"]
        if values.dtype is not torch.uint8 or values.dim() != 1 or ends.dtype is not torch.int64 or ends.dim() != 1:
            raise ValueError("a packed column has the wrong type or shape")
        bounds = [0, *ends.tolist(), len(values)]
        if bounds != sorted(bounds) or bounds[-2] != bounds[-1]:
            raise ValueError("the rows of a packed column don't lie one after the other")
        forms = [ImageForm.from_json(document) for document in described] if kind == IMAGE else ()
        if kind == IMAGE and (
            len(forms) != len(ends)
            or any(end - first != form.pixel_bytes for first, end, form in zip(bounds, bounds[1:], forms, strict=False))
        ):
            raise ValueError("the pixels of an image aren't those of its mode and size")
        return PackedColumn(kind, values, ends, forms)
    if kind not in _READ:
        raise ValueError(f"unknown kind of leaf {str(kind)[:20]!r}")
    if values.dim() == 0 or (kind in _ONE_NUMBER and values.dim() != 1):
        raise ValueError("a column has the wrong shape")
    return TensorColumn(kind, values)
