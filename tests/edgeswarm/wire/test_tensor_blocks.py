"""Blocks of zeros that don't travel: all else arrives as it was, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.tensor_blocks import BLOCK_BYTES, put_zero_blocks_back, without_zero_blocks


@given(
    blocks=st.lists(st.booleans(), max_size=40),
    rest=st.integers(0, BLOCK_BYTES - 1),
    begin=st.integers(0, 8),
    seed=st.integers(0, 5),
)
def test_what_travels_comes_back(blocks: list[bool], rest: int, begin: int, seed: int) -> None:
    size = len(blocks) * BLOCK_BYTES + rest
    data = np.zeros(begin + size, dtype=np.uint8)[begin:]
    data[:] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    for block, is_kept in enumerate(blocks):
        if not is_kept:
            data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = 0
    travelled = without_zero_blocks(data)
    if travelled is None:
        assert blocks.count(False) <= len(blocks) / 8
        return
    assert len(travelled) == -(-len(blocks) // 8) + blocks.count(True) * BLOCK_BYTES + rest
    target = np.full(size, 7, dtype=np.uint8)
    put_zero_blocks_back(travelled, target)
    assert np.array_equal(target, data)


def test_the_last_byte_of_a_block_keeps_it() -> None:
    data = np.zeros(16 * BLOCK_BYTES, dtype=np.uint8)
    data[3 * BLOCK_BYTES - 1] = 1
    travelled = without_zero_blocks(data)
    assert travelled is not None
    assert len(travelled) == 2 + BLOCK_BYTES


def test_blocks_that_merely_begin_with_zeros_travel() -> None:
    data = np.ones(16 * BLOCK_BYTES, dtype=np.uint8)
    data[::BLOCK_BYTES] = 0
    data.reshape(16, -1)[:, :8] = 0
    assert without_zero_blocks(data) is None


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_bytes_that_do_not_fit_are_refused(size: int) -> None:
    travelled = np.zeros(size, dtype=np.uint8)
    travelled[:1] = 0b1000_0000
    with pytest.raises(ValueError, match="bytes"):
        put_zero_blocks_back(travelled, np.empty(9 * BLOCK_BYTES + 5, dtype=np.uint8))
