from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.printable import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nano-1 hat kein Gedächtnis mehr", "nano-1 hat kein Gedächtnis mehr"),
        ("first line\n\tsecond", "first line\n\tsecond"),
        ("\x1b]52;c;cm0gLXJm\x07done", "\N{REPLACEMENT CHARACTER}]52;c;cm0gLXJm\N{REPLACEMENT CHARACTER}done"),
        ("50 %\r100 %", "50 %\N{REPLACEMENT CHARACTER}100 %"),
        ("\x9b2J", "\N{REPLACEMENT CHARACTER}2J"),  # the same as ESC [ to some terminals
    ],
)
def test_what_moves_a_terminal_is_replaced(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.text())
def test_what_is_printable_stays_so_and_nothing_else_is_left(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(character.isprintable() or character in "\n\t" for character in shown)
    assert printable(shown) == shown
