"""Reading a JSON object field by field, with an error that names the field: `stages[1].shares.b must be ...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass
from typing import TypeGuard

from .errors import EdgeswarmError


@dataclass(frozen=True)
class Fields:
    """One object of a JSON document, where it lies in the document, and how a mistake in it is reported.

    path: of this object, "" for the document itself. invalid: makes the error from a sentence about the field.
    """

    values: dict[str, object]
    path: str
    invalid: Callable[[str], EdgeswarmError]

    @classmethod
    def of(cls, document: object, invalid: Callable[[str], EdgeswarmError], *, what: str) -> Fields:
        """The whole document; raises where it is no JSON object."""
        if not isinstance(document, dict):
            raise invalid(f"{what} is one JSON object, not {_kind(document)}")
        return cls(document, "", invalid)

    def error(self, problem: str) -> EdgeswarmError:
        """The error for a mistake in this object as a whole."""
        return self.invalid(f"{self.path}: {problem}" if self.path else problem)

    def names(self) -> KeysView[str]:
        return self.values.keys()

    def has(self, key: str) -> bool:
        """Whether the field is there; null counts as not there."""
        return self.values.get(key) is not None

    def expect_format(self, wanted: str) -> None:
        """Check the `format` field; a document without one is taken as the wanted format."""
        found = self.values.get("format", wanted)
        if found != wanted:
            raise self.invalid(f"format is {found!r}, expected {wanted!r}")

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._mismatch(key, "a text", value)
        return value

    def whole(self, key: str, *, least: int, default: int | None = None) -> int:
        """A whole number of at least `least`. A float without a fraction counts, since some writers print 8.0."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._mismatch(key, f"a whole number of at least {least}", value)
        return value

    def optional_whole(self, key: str, *, least: int) -> int | None:
        return self.whole(key, least=least) if self.has(key) else None

    def number(self, key: str, *, least: float, default: float | None = None) -> float:
        """A finite number of at least `least`."""
        value = self._value(key, default)
        if not _is_number(value) or value < least:
            raise self._mismatch(key, f"a number of at least {least:g}", value)
        return float(value)

    def numbers(self, key: str, *, least: float) -> tuple[float, ...]:
        """A list of finite numbers, each at least `least`."""
        return self._all_numbers(key, self.items(key), least)

    def rows(self, key: str, *, least: float) -> tuple[tuple[float, ...], ...]:
        """A list of lists of finite numbers, each at least `least`."""
        rows = []
        for index, row in enumerate(self.items(key)):
            if not isinstance(row, list):
                raise self._mismatch(f"{key}[{index}]", "a list of numbers", row)
            rows.append(self._all_numbers(f"{key}[{index}]", row, least))
        return tuple(rows)

    def optional_section(self, key: str) -> Fields | None:
        """The object under a key; None where it is not there."""
        return self.section(key) if self.has(key) else None

    def section(self, key: str) -> Fields:
        """The object under a key, which must be there."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise self._mismatch(key, "an object", value)
        return Fields(value, self._path(key), self.invalid)

    def sections(self, key: str, *, optional: bool = False) -> Iterator[Fields]:
        """The objects of a list, each with its own path."""
        if optional and not self.has(key):
            return
        for index, value in enumerate(self.items(key)):
            if not isinstance(value, dict):
                raise self._mismatch(f"{key}[{index}]", "an object", value)
            yield Fields(value, self._path(f"{key}[{index}]"), self.invalid)

    def items(self, key: str) -> list[object]:
        """The list under a key, its items unread."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self._mismatch(key, "a list", value)
        return value

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(f"{self._path(key)} is missing")
        return default

    def _all_numbers(self, key: str, items: list[object], least: float) -> tuple[float, ...]:
        numbers = []
        for index, value in enumerate(items):
            if not _is_number(value) or value < least:
                raise self._mismatch(f"{key}[{index}]", f"a number of at least {least:g}", value)
            numbers.append(float(value))
        return tuple(numbers)

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _mismatch(self, key: str, expected: str, value: object) -> EdgeswarmError:
        return self.invalid(f"{self._path(key)} must be {expected}, not {_kind(value)}")


def _is_number(value: object) -> TypeGuard[int | float]:
    # Compared, not asked with math.isfinite: that raises for a whole number too large for a float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _kind(value: object) -> str:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
