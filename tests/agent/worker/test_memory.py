"""What a large gradient that comes and goes leaves behind, in a process that is started as a worker is."""

from __future__ import annotations

import sys

import pytest

from ..processes import printed_as_worker

LARGE_MIB = 40
# Three micro-batches' activations are kept at a time; a large gradient comes and goes with each. Printed is by how much the
# process shrinks when it goes: in the heap what comes next may settle there, and the next gradient takes new memory.
ROUNDS = f"""
import collections, torch
from edgeswarm_agent.worker.memory import anonymous_bytes, map_gradients_of
table = torch.nn.Parameter(torch.ones({LARGE_MIB}, 2**18))
map_gradients_of([table, torch.nn.Parameter(torch.ones(8))])
kept = collections.deque(maxlen=3)
for _ in range(9):
    gradient = torch.ones_like(table)
    with_it = anonymous_bytes()
    del gradient
    print((with_it - anonymous_bytes()) / 2**20)
    kept.append([torch.ones(2**18) for _ in range(30)])
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_a_large_gradient_leaves_no_gaps_that_activations_settle_in() -> None:
    shrunk_mib = printed_as_worker(ROUNDS)
    assert len(shrunk_mib) == 9
    assert min(shrunk_mib) >= LARGE_MIB - 2  # a page of 2 MiB, where the system has such
