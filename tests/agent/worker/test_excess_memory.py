"""Memory beyond the plan, in a process that is started as a worker is."""

from __future__ import annotations

import sys

import pytest

from ..processes import printed_as_worker

pytestmark = pytest.mark.thorough

# Blocks of 1 MiB, every second one of which is let go of: gaps that the heap keeps.
WITH_GAPS = """
import torch
from edgeswarm_agent.worker.excess_memory import LEAST_CPU_SECONDS, MOST_COST, SECONDS_PER_BYTE, ExcessMemory
from edgeswarm.process_memory import anonymous_bytes

MIB = 2**20
now = 0.0
torch.ones(1)
before = anonymous_bytes()

def with_gaps():
    return [torch.ones(2**18) for _ in range(128)][::2]

def held():
    return (anonymous_bytes() - before) // MIB
"""


def printed(code: str) -> list[float]:
    return printed_as_worker(WITH_GAPS + code)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_what_is_free_goes_back_once_more_is_held_than_the_plan_says() -> None:
    full, within, without_plan, beyond = printed("""
blocks = with_gaps()
print(held())
ExcessMemory(before + 200 * MIB).after_round(before + 201 * MIB)
print(held())
ExcessMemory(None).after_round(1 << 40)
print(held())
ExcessMemory(before + 100 * MIB).after_round(before + 128 * MIB)
print(held())
""")
    assert full >= 120
    assert within == without_plan == full
    assert beyond <= 80  # 64 of which are in use


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_it_costs_at_most_a_hundredth_of_the_processor() -> None:
    full, soon, later = printed("""
excess = ExcessMemory(before + 32 * MIB, cpu_seconds=lambda: now)
blocks = with_gaps()
excess.after_round(1 << 40)
del blocks
blocks = with_gaps()
print(held())
now = 0.99 * LEAST_CPU_SECONDS
excess.after_round(1 << 40)
print(held())
now = 128 * MIB * SECONDS_PER_BYTE / MOST_COST
excess.after_round(1 << 40)
print(held())
""")
    assert soon == full
    assert later < full - 40
