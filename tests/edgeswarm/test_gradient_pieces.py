"""Where gradients are cut: parts of about one size, which begin where rows of a table may."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.gradient_pieces import ALIGNED_NUMBERS, cut_places


@given(numbers=st.integers(1, 10**9), parts=st.integers(1, 16))
def test_parts_are_of_about_one_size_and_begin_aligned(numbers: int, parts: int) -> None:
    places = cut_places(numbers, parts)
    sizes = [end - begin for begin, end in pairwise((0, *places, numbers))]
    assert len(sizes) == parts
    assert all(place % ALIGNED_NUMBERS == 0 for place in places)
    assert all(abs(size - numbers / parts) <= ALIGNED_NUMBERS for size in sizes)
