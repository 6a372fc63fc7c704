"""Reading JSON that another machine wrote: every field is checked before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import EdgeswarmError, ErrorCode

T = TypeVar("T")

#: What fx may use as a variable name: the graph's names end up in generated source.
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
MAXIMUM_NODES = 200_000
MAXIMUM_NESTING = 8


def refuse(message: str) -> EdgeswarmError:
    """The error for graph data that can't be what an honest coordinator of this version sends."""
    return EdgeswarmError(
        ErrorCode.GRAPH_REFUSED,
        f"The stage's graph is refused: {message}.",
        "Run the same version of edgeswarm on the coordinator and on the devices.",
    )


def parse_document(document: object) -> dict[str, Any]:
    """The JSON object in `document`, which is the object itself or its text. Raises GRAPH_REFUSED."""
    if isinstance(document, bytes | bytearray | str):
        try:
            document = json.loads(document)
        except RecursionError:
            raise refuse("it is nested too deeply") from None
        except ValueError as error:
            raise refuse(f"it is not JSON ({error})") from None
    return read_object(document, "the graph")


def read_object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise refuse(f"{what} is not a JSON object")
    return value


class Fields:
    """Typed access to one JSON object's fields.

    Each method returns the field's value or raises GRAPH_REFUSED with the object's and the field's name.
    """

    def __init__(self, value: object, what: str) -> None:
        self._fields = read_object(value, what)
        self._what = what

    def get(self, name: str) -> Any:
        if name not in self._fields:
            raise refuse(f"{self._what} has no {name!r}")
        return self._fields[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise refuse(f"{name!r} of {self._what} is not a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def identifier(self, name: str) -> str:
        value = self.text(name)
        if not IDENTIFIER.fullmatch(value):
            raise refuse(f"{name!r} of {self._what} is not a name: {value[:60]!r}")
        return value

    def integer(self, name: str, *, minimum: int = 0) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise refuse(f"{name!r} of {self._what} is not a whole number of at least {minimum}")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise refuse(f"{name!r} of {self._what} is not true or false")
        return value

    def number(self, name: str) -> float:
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refuse(f"{name!r} of {self._what} is not a number")
        return float(value)

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list):
            raise refuse(f"{name!r} of {self._what} is not a list")
        if len(value) > MAXIMUM_NODES:
            raise refuse(f"{name!r} of {self._what} has {len(value)} entries")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.items(name)
        if not all(isinstance(value, str) for value in values):
            raise refuse(f"{name!r} of {self._what} is not a list of texts")
        return tuple(values)

    def integers(self, name: str, *, minimum: int = 0) -> tuple[int, ...]:
        values = self.items(name)
        if not all(isinstance(value, int) and not isinstance(value, bool) and value >= minimum for value in values):
            raise refuse(f"{name!r} of {self._what} is not a list of whole numbers of at least {minimum}")
        return tuple(values)

    def each(self, name: str, read: Callable[[object], T]) -> tuple[T, ...]:
        return tuple(read(value) for value in self.items(name))
