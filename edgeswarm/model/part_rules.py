"""What of its arguments an operation needs for a part of its result: along one dimension, from one place to another.

    linear            [batch, tokens, in] x [out, in]          a token of the result needs that token alone
    attention         queries, keys, values                    a token of the result needs its query, and every key and value
    layer_norm        [batch, tokens, width]                   likewise, but no part of the width
    transpose, view   [batch, tokens, heads, width]            the same tokens, in the dimension where they lie there
    convolution, batch_norm, ...                               no rule: everything

A rule may only say what holds for every value: the same numbers come out, up to the order of sums inside a product of matrices
and what dropout draws. (Infinities of what nobody reads spoil gradients in PyTorch, by 0 x inf, and don't here.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .lowering import BATCH, RawNode, ValueType
from .operators import packet_of, words

_POINTWISE = words(
    """
    abs add alias clamp clone contiguous detach div dropout elu exp gelu hardsigmoid hardswish hardtanh leaky_relu log
    masked_fill mish mul neg pow relu relu6 rsqrt rsub selu sigmoid silu softplus sqrt square sub tanh where
    """
)
#: Other overloads compare or convert to another tensor's dtype and device.
_CONVERSIONS = frozenset({"aten.to.dtype", "aten._to_copy.default"})
#: `view.dtype` isn't one of them.
_RESHAPES = frozenset(
    {
        "aten.flatten.using_ints",
        "aten.reshape.default",
        "aten.unflatten.int",
        "aten.view.default",
        "aten._unsafe_view.default",
    }
)
#: PyTorch writes `x[:]` as one that ends at 2**63 - 1.
_NO_END = 2**62
#: Keywords that a rule takes from there, or that say nothing of dimensions and sizes.
_KEYWORDS = words(
    "alpha approximate attn_mask device dtype dropout_p implicit is_causal memory_format rounding_mode scale"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """Of one dimension what lies from `begin` to `end`; the dimension's size is a number, so it isn't the batch."""

    dim: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def of(self, value: ValueType) -> ValueType:
        """What a value is of which only this part is there."""
        whole = value.shape[self.dim]
        assert whole is not None
        shape = (*value.shape[: self.dim], self.size, *value.shape[self.dim + 1 :])
        elements = value.elements and (
            value.elements[0] * self.size // whole,
            value.elements[1] * self.size // whole,
        )
        return dataclasses.replace(value, shape=shape, elements=elements)


@dataclasses.dataclass(frozen=True)
class PartialCall:
    """A call that computes a part of a node's result alone.

    args: as a node's. needs: by name of a value that it reads, the part that it gets in place of the whole.
    """

    op: str
    args: list[Any]
    needs: Mapping[str, Part]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Of what arguments refer to. values: of nodes and inputs. tensors: of parameters, buffers and constants."""

    values: Mapping[str, ValueType]
    tensors: Mapping[str, tuple[int, ...]]

    def of(self, argument: Any) -> tuple[int | None, ...] | None:
        """None for what isn't a tensor."""
        if not isinstance(argument, dict):
            return None
        if "tensor" in argument:
            return self.tensors[argument["tensor"]]
        value = self.values.get(argument.get("node", ""))
        return None if value is None or value.dtype is None else value.shape


def read_part(node: RawNode, shapes: Shapes) -> tuple[str, Part] | None:
    """The value of which a node reads a part alone, and which: `x[:, 0]`. None for all other nodes."""
    packet = packet_of(node.op)
    is_part = packet in ("select", "slice") and not node.kwargs
    if not is_part or not (isinstance(node.args[0], dict) and "node" in node.args[0]):
        return None
    shape = shapes.of(node.args[0])
    dim = _dimension(node.args[1] if len(node.args) > 1 else 0, shape)
    size = shape[dim] if shape else None
    if size is None or size == BATCH:
        return None
    if packet == "select":
        begin = _place(node.args[2], size)
        interval = None if begin is None else (begin, begin + 1)
    else:
        interval = _interval(node.args, size)
    if interval is None or not 0 <= interval[0] < interval[1] <= size:
        return None
    return node.args[0]["node"], Part(dim, *interval)


def partial_call(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """The call that computes this part of a node's result; None where there is no rule, or the part needs everything."""
    packet = packet_of(node.op)
    if not node.kwargs.keys() <= _KEYWORDS:
        return None
    if node.op in _CONVERSIONS or packet in _POINTWISE:
        return _pointwise(node, part, shapes)
    if node.op in _RESHAPES:
        return _reshape(node, part, shapes)
    rule = _RULES.get(packet)
    return None if rule is None else rule(node, part, shapes)


class _Needs:
    """Collects the parts of what a call reads; there is no such call where it needs two parts of one value, or a weight's."""

    def __init__(self) -> None:
        self._parts: dict[str, Part | None] = {}
        self._possible = True

    def add(self, argument: Any, part: Part | None) -> None:
        """part: None for the whole."""
        if not isinstance(argument, dict):
            return
        if "node" in argument:
            name = argument["node"]
            self._possible &= self._parts.setdefault(name, part) == part
        else:
            self._possible &= part is None

    def call(self, node: RawNode, *, op: str | None = None, args: list[Any] | None = None) -> PartialCall | None:
        """The others of what the node reads are given whole."""
        if not self._possible:
            return None
        parts = {name: part for name, part in self._parts.items() if part is not None}
        return PartialCall(op or node.op, node.args if args is None else args, parts) if parts else None


def _of_one_argument(node: RawNode, place: int, part: Part, **changed: Any) -> PartialCall | None:
    """The call that needs a part of the argument at this place, and all others whole."""
    needs = _Needs()
    for position, argument in enumerate((*node.args, *node.kwargs.values())):
        needs.add(argument, part if position == place else None)
    return needs.call(node, **changed)


def _broadcast(
    shape: tuple[int | None, ...] | None, result: Sequence[int | None], part: Part
) -> tuple[bool, Part | None]:
    """Whether an argument that is broadcast to the result has this part, and which that is; None for the whole."""
    dim = -1 if shape is None else part.dim - (len(result) - len(shape))
    if shape is None or dim < 0 or shape[dim] == 1:
        return True, None
    return shape[dim] == result[part.dim], dataclasses.replace(part, dim=dim)


def _pointwise(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    needs = _Needs()
    for argument in (*node.args, *node.kwargs.values()):
        fits, needed = _broadcast(shapes.of(argument), node.value.shape, part)
        if not fits:
            return None
        needs.add(argument, needed)
    return needs.call(node)


def _linear(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """linear: any part but one of the last dimension."""
    bias = shapes.of(node.args[2]) if len(node.args) > 2 else None
    is_width = part.dim == len(node.value.shape) - 1
    return None if is_width or len(bias or ()) > 1 else _of_one_argument(node, 0, part)


def _matmul(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    left, right = (shapes.of(argument) for argument in node.args[:2])
    result = node.value.shape
    if left is None or right is None or min(len(left), len(right)) < 2 or part.dim == len(result) - 1:
        return None
    needs = _Needs()
    fits, needed = _broadcast(left, result, part)
    needs.add(node.args[0], needed)
    if part.dim == len(result) - 2:
        needs.add(node.args[1], None)
        return needs.call(node) if fits else None
    fits_too, needed = _broadcast(right, result, part)
    needs.add(node.args[1], needed)
    return needs.call(node) if fits and fits_too else None


def _layer_norm(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    is_outside = part.dim < len(node.value.shape) - len(node.args[1])
    return _of_one_argument(node, 0, part) if is_outside else None


def _softmax(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    is_another = part.dim != _dimension(node.args[1], node.value.shape)
    return _of_one_argument(node, 0, part) if is_another else None


def _transpose(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    one, other = (_dimension(dim, node.value.shape) for dim in node.args[1:3])
    dim = {one: other, other: one}.get(part.dim, part.dim)
    return _of_one_argument(node, 0, dataclasses.replace(part, dim=dim))


def _permute(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    dim = _dimension(node.args[1][part.dim], node.value.shape)
    return _of_one_argument(node, 0, dataclasses.replace(part, dim=dim))


def _unsqueeze(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    made = _dimension(node.args[1], node.value.shape)
    if part.dim == made:
        return None
    return _of_one_argument(node, 0, dataclasses.replace(part, dim=part.dim - (part.dim > made)))


def _expand(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    fits, needed = _broadcast(shapes.of(node.args[0]), node.value.shape, part)
    if not fits or needed is None:
        return None
    sizes = list(node.args[1])
    sizes[part.dim] = part.size
    return _of_one_argument(node, 0, needed, args=[node.args[0], sizes, *node.args[2:]])


def _reshape(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """Where the dimension is one of the argument's, too: of the same size, with as many elements before it."""
    shape, result = shapes.of(node.args[0]), node.value.shape
    if shape is None or None in shape or None in result:
        return None
    before = _count(result[: part.dim])
    fitting = (dim for dim, size in enumerate(shape) if size == result[part.dim] and _count(shape[:dim]) == before)
    dim = next(fitting, None)
    if dim is None:
        return None
    sizes: list[Any] = [{"batch": [1, 0]} if size == BATCH else size for size in result]
    sizes[part.dim] = part.size
    # What is given may lie apart in memory, which `view` doesn't take.
    needed = dataclasses.replace(part, dim=dim)
    return _of_one_argument(node, 0, needed, op="aten.reshape.default", args=[node.args[0], sizes])


def _count(sizes: Sequence[int | None]) -> tuple[int, int]:
    """Elements: a power of the batch, and a number."""
    return sizes.count(BATCH), math.prod(size for size in sizes if size is not None and size != BATCH)


def _slice(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """One of everything (`x[:]`) alone: a part of a part isn't followed."""
    start, end, step = _slice_bounds(node.args)
    is_all = start in (None, 0) and (end is None or (isinstance(end, int) and end >= _NO_END)) and step == 1
    return _of_one_argument(node, 0, part) if is_all else None


def _cat(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    if part.dim == _dimension(node.args[1] if len(node.args) > 1 else 0, node.value.shape):
        return None
    needs = _Needs()
    for argument in node.args[0]:
        shape = shapes.of(argument)
        if shape is None or len(shape) != len(node.value.shape):
            return None
        needs.add(argument, part)
    return needs.call(node)


def _attention(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """A part of the queries. args: query, key, value, mask, probability, whether causal."""
    result = node.value.shape
    is_causal = node.args[5] if len(node.args) > 5 else node.kwargs.get("is_causal", False)
    if part.dim != len(result) - 2 or is_causal:
        return None
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    queries, of_mask = shapes.of(node.args[0]), _broadcast(shapes.of(mask), result, part)
    if queries is None or len(queries) != len(result) or not of_mask[0]:
        return None
    needs = _Needs()
    needs.add(node.args[0], part)
    needs.add(node.args[1], None)
    needs.add(node.args[2], None)
    needs.add(mask, of_mask[1])
    return needs.call(node)


def _embedding(node: RawNode, part: Part, shapes: Shapes) -> PartialCall | None:
    """args: table, indices, row without gradient, whether it depends on counts (which is refused), whether it is sparse."""
    of_all = any(node.args[4:5])
    return None if part.dim == len(node.value.shape) - 1 or of_all else _of_one_argument(node, 1, part)


_RULES: dict[str, Callable[[RawNode, Part, Shapes], PartialCall | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "bmm": _matmul,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "_softmax": _softmax,
    "transpose": _transpose,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "slice": _slice,
    "cat": _cat,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
}


def _dimension(dim: Any, shape: Sequence[int | None] | None) -> int:
    return int(dim) % max(1, len(shape or ()))


def _place(number: Any, size: int) -> int | None:
    """An index from the beginning; None for what isn't a number."""
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number + size if number < 0 else number


def _slice_bounds(args: Sequence[Any]) -> tuple[Any, Any, Any]:
    given = list(args[2:5])
    start, end, step = given + [None, None, 1][len(given) :]
    return start, end, step


def _interval(args: Sequence[Any], size: int) -> tuple[int, int] | None:
    start, end, step = _slice_bounds(args)
    begin = 0 if start is None else _place(start, size)
    stop = size if end is None else _place(end, size)
    if step != 1 or begin is None or stop is None:
        return None
    return max(0, begin), min(stop, size)
