"""Reading a JSON object field by field, with an error that names the field: `stages[1].shares.b must be ...`.

Made for documents that somebody else wrote, a person or another machine: whatever stands in them, the reader gives a
value of the type that was asked for, or raises the one error of its document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from .errors import EdgeswarmError

T = TypeVar("T")

_LARGEST_INTEGER = 2**63 - 1  # what arrays of whole numbers hold

LONGEST_LIST = 200_000
LONGEST_SHOWN_TEXT = 60


@dataclass(frozen=True)
class Fields:
    """One object of a JSON document, where it lies in the document, and how a mistake in it is reported.

    path: of this object, "" for the document itself. invalid: makes the error from a sentence about the field.
    A field that is null counts as not there. No list may have more than LONGEST_LIST entries.
    """

    values: dict[str, object]
    path: str
    invalid: Callable[[str], EdgeswarmError]

    @classmethod
    def of(cls, document: object, invalid: Callable[[str], EdgeswarmError], *, what: str) -> Fields:
        """The whole document; raises where it is no JSON object."""
        if not _is_object(document):
            raise invalid(f"{what} is one JSON object, not {_kind(document)}")
        return cls(document, "", invalid)

    def error(self, problem: str) -> EdgeswarmError:
        """The error for a mistake in this object as a whole."""
        return self.invalid(f"{self.path}: {problem}" if self.path else problem)

    def names(self) -> KeysView[str]:
        return self.values.keys()

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def expect_format(self, wanted: str, *, optional: bool = False) -> None:
        """Check the `format` field. optional: a document without one is taken as the wanted format."""
        found = self.text("format", default=wanted if optional else None)
        if found != wanted:
            raise self.invalid(f"format is {_kind(found)}, expected {wanted!r}")

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._mismatch(key, "a text", value)
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def flag(self, key: str) -> bool:
        value = self._value(key, None)
        if not isinstance(value, bool):
            raise self._mismatch(key, "true or false", value)
        return value

    def integer(self, key: str, *, minimum: int, default: int | None = None) -> int:
        """A whole number. A float without a fraction counts, since some writers print 8.0."""
        return self._integer(key, self._value(key, default), minimum)

    def optional_integer(self, key: str, *, minimum: int) -> int | None:
        return self.integer(key, minimum=minimum) if self.has(key) else None

    def number(self, key: str, *, minimum: float = -math.inf, default: float | None = None) -> float:
        """A finite number."""
        return self._number(key, self._value(key, default), minimum)

    def optional_number(self, key: str, *, minimum: float = -math.inf) -> float | None:
        return self.number(key, minimum=minimum) if self.has(key) else None

    def texts(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of texts. optional: where there is none it is empty."""
        return () if optional and not self.has(key) else self._texts(key, self.items(key))

    def integers(self, key: str, *, minimum: int) -> tuple[int, ...]:
        return tuple(self._integer(place, value, minimum) for place, value in _places(key, self.items(key)))

    def numbers(self, key: str, *, minimum: float) -> tuple[float, ...]:
        return self._numbers(key, self.items(key), minimum)

    def text_lists(self, key: str) -> tuple[tuple[str, ...], ...]:
        """A list of lists of texts."""
        return tuple(self._texts(place, items) for place, items in self._lists(key))

    def number_lists(self, key: str, *, minimum: float) -> tuple[tuple[float, ...], ...]:
        """A list of lists of finite numbers."""
        return tuple(self._numbers(place, items, minimum) for place, items in self._lists(key))

    def section(self, key: str) -> Fields:
        """The object under a key, which must be there."""
        return self._section(key, self._value(key, None))

    def optional_section(self, key: str) -> Fields | None:
        """The object under a key; None where it is not there."""
        return self.section(key) if self.has(key) else None

    def sections(self, key: str, *, optional: bool = False) -> Iterator[Fields]:
        """The objects of a list, each with its own path. optional: where there is no list it is empty."""
        if optional and not self.has(key):
            return
        for place, value in _places(key, self.items(key)):
            yield self._section(place, value)

    def each(self, key: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """The objects of a list, each read."""
        return tuple(read(entry) for entry in self.sections(key))

    def each_of_lists(self, key: str, read: Callable[[Fields], T]) -> tuple[tuple[T, ...], ...]:
        """The objects of a list of lists, each read."""
        return tuple(
            tuple(read(self._section(inner, value)) for inner, value in _places(place, items))
            for place, items in self._lists(key)
        )

    def items(self, key: str) -> list[object]:
        """The list under a key, its items unread."""
        return self._list(key, self._value(key, None))

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(f"{self._path(key)} is missing")
        return default

    # What follows reads one value; `place` says where it stands in this object: "shares", "shape[2]", "rows[1][0]".

    def _integer(self, place: str, value: object, minimum: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._mismatch(place, f"a whole number of at least {minimum}", value)
        if value > _LARGEST_INTEGER:
            raise self._mismatch(place, f"a whole number of at most {_LARGEST_INTEGER}", value)
        return value

    def _number(self, place: str, value: object, minimum: float) -> float:
        if not _is_number(value) or value < minimum:
            expected = "a finite number" if minimum == -math.inf else f"a number of at least {minimum:g}"
            raise self._mismatch(place, expected, value)
        return float(value)

    def _numbers(self, place: str, items: list[object], minimum: float) -> tuple[float, ...]:
        return tuple(self._number(inner, value, minimum) for inner, value in _places(place, items))

    def _texts(self, place: str, items: list[object]) -> tuple[str, ...]:
        texts = []
        for inner, value in _places(place, items):
            if not isinstance(value, str):
                raise self._mismatch(inner, "a text", value)
            texts.append(value)
        return tuple(texts)

    def _section(self, place: str, value: object) -> Fields:
        if not _is_object(value):
            raise self._mismatch(place, "an object", value)
        return Fields(value, self._path(place), self.invalid)

    def _list(self, place: str, value: object) -> list[object]:
        if not isinstance(value, list):
            raise self._mismatch(place, "a list", value)
        if len(value) > LONGEST_LIST:
            raise self.invalid(f"{self._path(place)} has {len(value)} entries; {LONGEST_LIST} is the limit")
        return value

    def _lists(self, key: str) -> Iterator[tuple[str, list[object]]]:
        for place, value in _places(key, self.items(key)):
            yield place, self._list(place, value)

    def _path(self, place: str) -> str:
        return f"{self.path}.{place}" if self.path else place

    def _mismatch(self, place: str, expected: str, value: object) -> EdgeswarmError:
        return self.invalid(f"{self._path(place)} must be {expected}, not {_kind(value)}")


def _places(key: str, items: list[object]) -> Iterator[tuple[str, object]]:
    for index, value in enumerate(items):
        yield f"{key}[{index}]", value


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_number(value: object) -> TypeGuard[int | float]:
    # Compared, not asked with math.isfinite: that raises for a whole number too large for a float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _kind(value: object) -> str:
    if isinstance(value, str) and len(value) > LONGEST_SHOWN_TEXT:
        return f"{value[:LONGEST_SHOWN_TEXT]!r}..."
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number beyond 64 bits"  # Python refuses to write the longest ones
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
