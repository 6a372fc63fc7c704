"""What a large gradient that comes and goes leaves behind, in a process that is started as a worker is."""

from __future__ import annotations

import sys

import pytest

from ..processes import printed_as_worker

LARGE_MIB = 40
ACTIVATIONS_MIB = 30
# Three micro-batches' activations are kept at a time, a fourth comes before the oldest goes; between them a large gradient comes
# and goes. What comes next may settle where it was, and the next gradient takes new memory.
ROUNDS = f"""
import collections, torch
from edgeswarm.process_memory import anonymous_bytes
kept = collections.deque(maxlen=3)
before = anonymous_bytes()
for _ in range(19):
    gradient = torch.ones({LARGE_MIB}, 2**18)
    print((anonymous_bytes() - before) / 2**20)
    del gradient
    kept.append([torch.ones(2**18) for _ in range({ACTIVATIONS_MIB})])
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_a_large_gradient_leaves_no_gaps_that_activations_settle_in() -> None:
    held_mib = printed_as_worker(ROUNDS)
    assert len(held_mib) == 19
    needed_mib = LARGE_MIB + 4 * ACTIVATIONS_MIB
    # Where activations once settled in its place, that place is all that is too much.
    assert max(held_mib) <= needed_mib + LARGE_MIB + 20  # pages are of 2 MiB, where the system has such
