"""Text that came from another machine, for a terminal."""

from __future__ import annotations

_STAYS = frozenset("\n\t")
_IN_PLACE = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text without what tells a terminal to do something: to move its cursor, or to change the clipboard."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in _STAYS else _IN_PLACE for character in text)
