"""What a micro-batch in flight takes: more than the activations that it saves, since blocks of many sizes leave gaps in a heap.

forward   forward   forward        each keeps what its backward will need
|-------->|-------->|-------->
          + growth  + growth       of the process
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd.graph import GradientEdge

from edgeswarm.model.probe import random_inputs_for, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.process_memory import anonymous_bytes, give_back_free_memory

from ..out_of_memory import is_out_of_memory
from ..worker.backward import edges_of
from .layer_timing import Timing

IN_FLIGHT = 3
# A batch that takes so much is large enough to see it; less growth is lost among pages of 2 MiB.
ENOUGH_BYTES = 32 * 2**20
LEAST_GROWTH_BYTES = 16 * 2**20
_SEED = 0


def held_sample_bytes(
    stage_graph: StageGraph, timings: list[Timing], *, memory_budget: int, check_halt: Callable[[], None]
) -> float:
    """Bytes for each sample of a further micro-batch; 0 where that can't be seen, or is too little to be seen.

    timings: of the stage, ascending. memory_budget: bytes that may be taken beyond parameters. On the CPU alone: an
    accelerator has an allocator of its own. check_halt: called before each forward; whatever it raises goes through.
    """
    fitting = [timing for timing in timings if IN_FLIGHT * timing.peak_bytes <= memory_budget]
    if not fitting:
        return 0.0
    batch_size = next((timing for timing in fitting if timing.peak_bytes >= ENOUGH_BYTES), fitting[-1]).batch_size
    module = StageModule(stage_graph, random_tensors(stage_graph, seed=_SEED), fast_layout=True)
    held = []
    sizes: list[int] = []
    try:
        for index in range(IN_FLIGHT):
            check_halt()
            held.append(_forward(module, batch_size, seed=index))
            sizes.append(anonymous_bytes())
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return 0.0
    finally:
        module.take_batch_statistics()
        held.clear()
        del module
        give_back_free_memory()
    grown = sizes[-1] - sizes[0]  # the first one also takes what all of them need for a moment
    return grown / (IN_FLIGHT - 1) / batch_size if grown >= LEAST_GROWTH_BYTES else 0.0


def _forward(
    module: StageModule, batch_size: int, *, seed: int
) -> tuple[Sequence[torch.Tensor], Sequence[GradientEdge | None]]:
    """What a worker keeps of it."""
    inputs = random_inputs_for(module, batch_size, seed=seed)
    return inputs, edges_of(module.forward(batch_size, inputs, draw=None))
