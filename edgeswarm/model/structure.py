"""The nesting of a model's arguments and of what it returns, as data, so that a stage elsewhere can build it again.

As JSON:

    {"value": 2}                       the third tensor
    {"constant": 0.5}                  a number, text, true, false or null that the model returns as it is
    {"list": [..]}  {"tuple": [..]}    nested
    {"dict": [[key, ..], ..]}          a dict, in its order
    {"named_tuple": ["Output", [[key, ..], ..]]}
    {"record": ["Output", [[key, ..], ..]]}   an output class with named fields, as Hugging Face's models return
    {"unfilled": true}                 in a record: a field that has nothing
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .checked_json import IDENTIFIER, MAXIMUM_NESTING, refuse

_UNFILLED = {"unfilled": True}
_MAXIMUM_DEPTH = 4 * MAXIMUM_NESTING


class Record(dict[str, Any]):
    """What stands for a user's output class: fields by attribute, by key, and by index as a tuple has them.

    unfilled: fields without anything, which are an attribute, None, and no more.
    """

    def __init__(self, fields: Iterable[tuple[str, Any]], *, unfilled: Iterable[str] = ()) -> None:
        super().__init__(fields)
        self.__unfilled = frozenset(unfilled)

    def __getattribute__(self, name: str) -> Any:
        # A field may be called `values` or `items`.
        if not name.startswith(("__", "_Record__")):
            if name in self:
                return self[name]
            if name in self.__unfilled:
                return None
        return super().__getattribute__(name)

    def __getitem__(self, key: Any) -> Any:
        return self.to_tuple()[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are filled."""
        return tuple(dict.values(self))


def describe(value: Any, leaf: Any) -> dict[str, Any]:
    """The structure of a nested value; `leaf(item)` gives the JSON of whatever is not a container."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return {"named_tuple": [type(value).__name__, [[key, describe(item, leaf)] for key, item in pairs]]}
    if isinstance(value, tuple):
        return {"tuple": [describe(item, leaf) for item in value]}
    if isinstance(value, list):
        return {"list": [describe(item, leaf) for item in value]}
    if isinstance(value, Mapping):
        pairs_json = [[key, describe(item, leaf)] for key, item in value.items()]
        if type(value) is dict or type(value).__name__ == "OrderedDict":
            return {"dict": pairs_json}
        # A field that isn't filled is no key, but an attribute: `outputs.loss is None`.
        fields: Any = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        unfilled = [field.name for field in fields if field.name not in value and getattr(value, field.name, 0) is None]
        return {"record": [type(value).__name__, pairs_json + [[name, _UNFILLED] for name in unfilled]]}
    described: dict[str, Any] = leaf(value)
    return described


def flatten(structure: Mapping[str, Any], value: Any) -> list[Any]:
    """The tensors of a value that has this structure, in the order of the graph's inputs.

    Raises ValueError that says where the value differs.
    """
    found: dict[int, Any] = {}
    for index, item in _walk(structure, value, "the model's input"):
        found[index] = item
    return [found[index] for index in sorted(found)]


def unflatten(structure: Mapping[str, Any], values: Sequence[Any]) -> Any:
    """The nested value with `values` in the places of its tensors."""
    kind, content = next(iter(structure.items()))
    if kind == "value":
        return values[content]
    if kind == "constant":
        return content
    if kind == "dict":
        return {key: unflatten(item, values) for key, item in content}
    if kind == "record":
        filled = [(key, unflatten(item, values)) for key, item in content[1] if item != _UNFILLED]
        return Record(filled, unfilled=[key for key, item in content[1] if item == _UNFILLED])
    if kind == "named_tuple":
        fields = tuple(key for key, _ in content[1])
        return _named_tuple(content[0], fields)(*(unflatten(item, values) for _, item in content[1]))
    items = [unflatten(item, values) for item in content]
    return tuple(items) if kind == "tuple" else items


@functools.lru_cache(maxsize=256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def check_structure(structure: object, values: int, depth: int = 0) -> dict[str, Any]:
    """The structure, if it is one and names only the first `values` tensors. Raises GRAPH_REFUSED."""
    if depth > _MAXIMUM_DEPTH:
        raise refuse("the structure of its values is nested too deeply")
    if not isinstance(structure, dict) or len(structure) != 1:
        raise refuse("the structure of its values is not understood")
    ((kind, content),) = structure.items()
    if kind == "value":
        fine = isinstance(content, int) and not isinstance(content, bool) and 0 <= content < values
    elif kind == "constant":
        fine = content is None or isinstance(content, bool | int | float | str)
    elif kind in ("list", "tuple"):
        fine = isinstance(content, list)
        for item in content if fine else ():
            check_structure(item, values, depth + 1)
    elif kind in ("dict", "record", "named_tuple"):
        name = ""
        if kind != "dict" and isinstance(content, list) and len(content) == 2 and isinstance(content[0], str):
            name, content = content
        fine = isinstance(content, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in content
        )
        if kind == "named_tuple" and fine:  # its names become those of a class
            keys = [pair[0] for pair in content]
            fine = len(set(keys)) == len(keys) and all(_is_field(key) for key in (name.lstrip("_"), *keys))
        for pair in content if fine else ():
            if kind != "record" or pair[1] != _UNFILLED:
                check_structure(pair[1], values, depth + 1)
    else:
        fine = False
    if not fine:
        raise refuse("the structure of its values is not understood")
    return structure


def _is_field(text: object) -> bool:
    return (
        isinstance(text, str)
        and IDENTIFIER.fullmatch(text) is not None
        and not text.startswith("_")
        and not keyword.iskeyword(text)
    )


def _walk(structure: Mapping[str, Any], value: Any, where: str) -> Iterator[tuple[int, Any]]:
    kind, content = next(iter(structure.items()))
    if kind == "value":
        yield content, value
    elif kind in ("dict", "record", "named_tuple"):
        pairs = content if kind == "dict" else content[1]
        for key, item in pairs:
            if isinstance(value, Mapping) and key in value:
                part = value[key]
            elif kind != "dict" and hasattr(value, str(key)):
                part = getattr(value, str(key))
            else:
                raise ValueError(f"{where} has no {key!r}")
            yield from _walk(item, part, f"{where}[{key!r}]")
    elif kind in ("list", "tuple"):
        if not isinstance(value, list | tuple) or len(value) != len(content):
            raise ValueError(f"{where} is not a sequence of {len(content)} items")
        for index, (item, part) in enumerate(zip(content, value, strict=True)):
            yield from _walk(item, part, f"{where}[{index}]")
    elif content is None and value is not None:
        raise ValueError(f"{where} is something, and was None")
