"""What a large gradient that comes and goes leaves behind, in a process that is started as a worker is."""

from __future__ import annotations

import sys

import pytest

from ..processes import printed_as_worker

LARGE_MIB = 40
# Three micro-batches' activations are kept at a time; a large gradient comes and goes with each.
ROUNDS = f"""
import collections, torch
from edgeswarm_agent.worker.memory import anonymous_bytes, map_gradients_of
table = torch.nn.Parameter(torch.ones({LARGE_MIB}, 2**18))
map_gradients_of([table, torch.nn.Parameter(torch.ones(8))])
before, most = anonymous_bytes(), 0
kept = collections.deque(maxlen=3)
for _ in range(9):
    gradient = torch.ones_like(table)
    most = max(most, anonymous_bytes())
    del gradient
    kept.append([torch.ones(2**18) for _ in range(30)])
print((most - before) // 2**20)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_a_large_gradient_leaves_no_gaps_that_activations_settle_in() -> None:
    held = LARGE_MIB + 4 * 30  # the oldest are let go of when the newest are there
    # In the heap it would be 240 to 320 MiB, most of the times.
    (largest_mib,) = printed_as_worker(ROUNDS)
    assert largest_mib <= held + 15
