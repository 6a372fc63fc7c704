"""What a profile may take, and what it tells."""

from __future__ import annotations

from edgeswarm.process_memory import anonymous_bytes
from edgeswarm_agent.profiler.profile import memory_budget

MEBIBYTE = 2**20


def test_what_the_owner_lets_it_hold_is_of_the_whole_process() -> None:
    free = memory_budget("cpu")
    assert free > 64 * MEBIBYTE
    assert memory_budget("cpu", 1) == 0
    limited = memory_budget("cpu", anonymous_bytes() + 32 * MEBIBYTE)
    assert 16 * MEBIBYTE < limited <= 32 * MEBIBYTE
    assert memory_budget("cpu", 2**60) > 64 * MEBIBYTE
