"""Tensors of which large parts are zero, as the gradient of a table of words is: blocks of nothing but zeros don't travel.

    bytes of the tensor     | block 0 | block 1 | block 2 | ... | rest |     BLOCK_BYTES each; the rest is shorter, or empty
    as they travel          | a bit for each block | block 0 | block 2 | ... | rest |

Zeros are zero bytes, so that all bits arrive as they were, those of a negative zero too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# A row of a small table. A bit of 512 bytes is nothing beside them.
BLOCK_BYTES = 512
# Below that part of all blocks, leaving them out is not worth a copy of the others.
_LEAST_LEFT_OUT = 0.125
_WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)


def without_zero_blocks(data: Bytes) -> Bytes | None:
    """As the bytes of a tensor travel; None where so few blocks are zero that they had better travel as they are."""
    count = len(data) // BLOCK_BYTES
    if count == 0:
        return None
    rows = data[: count * BLOCK_BYTES]
    words = rows.view(_widest_word(data)).reshape(count, -1)
    # One word of each block settles it for tensors that aren't sparse.
    if np.count_nonzero(words[:, 0] == 0) <= _LEAST_LEFT_OUT * count:
        return None
    kept = np.bitwise_or.reduce(words, axis=1) != 0
    kept_count = int(np.count_nonzero(kept))
    if count - kept_count <= _LEAST_LEFT_OUT * count:
        return None
    bits = np.packbits(kept)
    return np.concatenate((bits, rows.reshape(count, BLOCK_BYTES)[kept].reshape(-1), data[count * BLOCK_BYTES :]))


def put_zero_blocks_back(travelled: Bytes, target: Bytes) -> None:
    """Fills `target`, which is as long as the tensor. Raises ValueError for bytes that no `without_zero_blocks` gave."""
    count = len(target) // BLOCK_BYTES
    bits_bytes, rest_bytes = -(-count // 8), len(target) % BLOCK_BYTES
    if len(travelled) < bits_bytes + rest_bytes:
        raise ValueError(f"{len(travelled)} bytes are too few to tell which of {count} blocks follow")
    kept = np.unpackbits(travelled[:bits_bytes], count=count).astype(bool)
    blocks = travelled[bits_bytes : len(travelled) - rest_bytes]
    if len(blocks) != np.count_nonzero(kept) * BLOCK_BYTES:
        raise ValueError(f"{len(blocks)} bytes follow for {np.count_nonzero(kept)} blocks of {BLOCK_BYTES} bytes")
    rows = target[: count * BLOCK_BYTES].reshape(count, BLOCK_BYTES)
    rows[:] = 0
    rows[kept] = blocks.reshape(-1, BLOCK_BYTES)
    target[count * BLOCK_BYTES :] = travelled[len(travelled) - rest_bytes :]


def _widest_word(data: Bytes) -> npt.DTypeLike:
    """A tensor that is a part of another one may begin anywhere."""
    return next(word for word in _WORDS if data.ctypes.data % np.dtype(word).itemsize == 0)
