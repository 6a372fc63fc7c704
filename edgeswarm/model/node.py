"""One operation of a graph.

Its arguments are written as JSON:

    1, true, "mean", null          themselves
    {"float": "inf"}               a float that JSON lacks: inf, -inf, nan
    [ ... ]                        a list or tuple
    {"node": "relu_3"}             the value of an earlier node or of an input
    {"tensor": "features.0.weight"}   a parameter, buffer or constant under its original name
    {"batch": [2, 1]}              2 * batch + 1, batch being the samples of this call
    {"dtype": "float32"}           a torch.dtype; likewise {"layout": ...}, {"memory_format": ...}
    {"device": "stage"}            the device that the stage runs on
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from ..json_fields import Fields
from . import operators
from .checked_json import IDENTIFIER, MAXIMUM_NESTING, read_identifier, refuse
from .values import check_dtype

MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
LAYOUTS = ("strided",)
DEVICES = ("stage", "cpu")
LARGEST_INTEGER = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Node:
    """name: unique in the graph. op: "aten.conv2d.default". args, kwargs: JSON as above.

    layer: the layer that it belongs to; None for what depends on no input: each stage that needs it computes it anew.
    after: nodes that change in place what this one reads, and must have run.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layer: int | None
    after: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the nodes and inputs in the arguments."""
        return tuple(dict.fromkeys(references((self.args, self.kwargs), "node")))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Original names of the tensors in the arguments."""
        return tuple(dict.fromkeys(references((self.args, self.kwargs), "tensor")))

    @property
    def is_random(self) -> bool:
        return operators.is_random(self.op, self.args, self.kwargs)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"name": self.name, "op": self.op, "args": list(self.args), "layer": self.layer}
        if self.kwargs:
            document["kwargs"] = self.kwargs
        if self.after:
            document["after"] = list(self.after)
        return document

    @classmethod
    def from_json(cls, fields: Fields) -> Node:
        name = read_identifier(fields, "name")
        op = fields.text("op")
        if not operators.is_allowed(op):
            raise refuse(f"the node {name!r} calls {op[:80]!r}, which is not on the list of allowed operations")
        keywords = fields.optional_section("kwargs")
        kwargs: dict[str, Any] = {} if keywords is None else keywords.values
        if not all(IDENTIFIER.fullmatch(key) for key in kwargs):
            raise refuse(f"the node {name!r} has a keyword that is not a name")
        args = tuple(fields.items("args"))
        for value in (*args, *kwargs.values()):
            _check_argument(value, name, 0)
        return cls(
            name=name,
            op=op,
            args=args,
            kwargs=kwargs,
            layer=fields.optional_integer("layer", minimum=0),
            after=fields.texts("after", optional=True),
        )


def map_argument(value: Any, replace: Callable[[str, Any], Any]) -> Any:
    """The argument with each of its marked objects, as {"node": "x"}, put through replace("node", "x")."""
    if isinstance(value, list | tuple):
        return [map_argument(item, replace) for item in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return replace(kind, content)
    return value


def references(value: object, kind: str) -> Iterator[str]:
    """The contents of all marked values of this kind ("node" or "tensor") in arguments."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from references(item, kind)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                if key == kind:
                    yield item
            else:
                yield from references(item, kind)


def _check_argument(value: object, node: str, depth: int) -> None:
    if depth > MAXIMUM_NESTING:
        raise refuse(f"an argument of the node {node!r} is nested too deeply")
    if isinstance(value, list):
        for item in value:
            _check_argument(item, node, depth + 1)
    elif isinstance(value, dict):
        if len(value) != 1:
            raise refuse(f"an argument of the node {node!r} is an object that isn't one marked value")
        ((kind, content),) = value.items()
        _check_marked(kind, content, node)
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        pass
    elif isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise refuse(f"an argument of the node {node!r} is larger than 64 bits")
    elif not isinstance(value, float):
        raise refuse(f"an argument of the node {node!r} is of the type {type(value).__name__}")
    elif not math.isfinite(value):
        raise refuse(f"an argument of the node {node!r} is a bare {value}")


def _check_marked(kind: object, content: object, node: str) -> None:
    words: dict[str, tuple[str, ...]] = {
        "float": ("inf", "-inf", "nan"),
        "device": DEVICES,
        "layout": LAYOUTS,
        "memory_format": MEMORY_FORMATS,
    }
    if kind == "batch":
        fine = (
            isinstance(content, list)
            and len(content) == 2
            and all(isinstance(part, int) and not isinstance(part, bool) and abs(part) < 2**40 for part in content)
        )
    elif not isinstance(content, str):
        fine = False
    elif kind in ("node", "tensor"):
        fine = True
    elif kind == "dtype":
        check_dtype(content, f"an argument of the node {node!r}")
        fine = True
    else:
        fine = content in words.get(str(kind), ())
    if not fine:
        raise refuse(f"an argument of the node {node!r} is a {kind!r} that is not understood")
