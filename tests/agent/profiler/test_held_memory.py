"""What a micro-batch in flight makes a worker larger by."""

from __future__ import annotations

import sys

import pytest

from edgeswarm_agent.profiler.held_memory import held_batch_size
from edgeswarm_agent.profiler.layer_timing import Timing

from ..processes import printed_as_worker

PROFILE = """
import torch
from torch import nn
torch.set_num_threads(1)
from edgeswarm.model.export import export_model
from edgeswarm_agent.profiler.held_memory import held_sample_bytes
from edgeswarm_agent.profiler.layer_timing import time_layer
WIDTH = 512
model = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
graph = export_model(model, (torch.zeros(4, 256, WIDTH),)).layer_graph
stage = graph.stage(0, len(graph.layers))
timings = time_layer(
    stage, [16], longest_seconds=0.0, memory_budget=1 << 40, slow_down=1.0, check_halt=lambda: None
)
saved = sum(layer.saved_bytes for layer in graph.layers)
print(held_sample_bytes(stage, timings, memory_budget=1 << 40, check_halt=lambda: None) / saved)
print(held_sample_bytes(stage, timings, memory_budget=timings[0].peak_bytes, check_halt=lambda: None))
print(held_sample_bytes(stage, [], memory_budget=1 << 40, check_halt=lambda: None))
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
def test_it_is_about_what_is_saved_and_not_asked_where_memory_is_short() -> None:
    """48 MiB for each micro-batch; what is found of it varies by one or two pages of 2 MiB."""
    by_saved, short_of_memory, nothing_timed = printed_as_worker(PROFILE)
    assert 0.9 <= by_saved <= 1.6
    assert (short_of_memory, nothing_timed) == (0.0, 0.0)


def tried(*sizes: int, sample_bytes: int) -> list[Timing]:
    return [Timing(size, 1.0, 1.0, 0.0, size * sample_bytes) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "sample_mib", "budget_mib", "expected"),
    [
        pytest.param((1, 4, 32), 10, 10_000, 7, id="enough to be seen, between those that were tried"),
        pytest.param((1, 4, 32), 1, 10_000, 32, id="no more than was tried"),
        pytest.param((4, 32), 100, 10_000, 4, id="no fewer than a layer needs"),
        pytest.param((1, 4, 32), 10, 200, 3, id="what memory holds"),
        pytest.param((4, 32), 10, 200, None, id="memory that doesn't hold so many"),
        pytest.param((1, 4), 0, 10_000, None, id="nothing to see"),
        pytest.param((), 1, 10_000, None, id="nothing tried"),
    ],
)
def test_the_batch_is_as_large_as_it_takes(
    sizes: tuple[int, ...], sample_mib: int, budget_mib: int, expected: int | None
) -> None:
    timings = tried(*sizes, sample_bytes=sample_mib * 2**20)
    assert held_batch_size(timings, memory_budget=budget_mib * 2**20) == expected


WEIGHTS_MIB = 64
ONE_LAYER = f"""
import torch
from torch import nn
torch.set_num_threads(1)
from edgeswarm.model.export import export_model
from edgeswarm_agent.profiler.layer_timing import time_layer
from edgeswarm.process_memory import anonymous_bytes
ROWS, COLUMNS = {WEIGHTS_MIB} * 1024, 256
graph = export_model(LAYER, (INPUT,)).layer_graph
before = anonymous_bytes()
(timing,) = time_layer(
    graph.stage(0, 1), [4], longest_seconds=0.0, memory_budget=1 << 40, slow_down=1.0, check_halt=lambda: None
)
print(timing.peak_bytes / 2**20, (anonymous_bytes() - before) / 2**20)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's allocator")
@pytest.mark.parametrize(
    ("layer", "made_input", "gradient_mib"),
    [
        pytest.param("nn.Linear(COLUMNS, ROWS)", "torch.zeros(4, COLUMNS)", WEIGHTS_MIB, id="a gradient of a backward"),
        pytest.param(
            "nn.Embedding(ROWS, COLUMNS)",
            "torch.zeros(4, 8, dtype=torch.long)",
            0,
            id="of a table the rows that are met",
        ),
    ],
)
def test_nothing_of_a_layer_stays_for_the_next_one(layer: str, made_input: str, gradient_mib: int) -> None:
    """Its peak is beyond parameters and the sums of gradients."""
    peak_mib, left_mib = printed_as_worker(ONE_LAYER.replace("LAYER", layer).replace("INPUT", made_input))
    assert gradient_mib - 4 <= peak_mib <= gradient_mib + 12
    assert left_mib <= 12
