"""What a micro-batch in flight takes: more than the activations that it saves, since blocks of many sizes leave gaps in a heap.

forward   forward   forward   ...        each keeps what its backward will need
|-------->|-------->|-------->|---
                    + growth  + growth   of the process

The first ones fill what lay free in the heap, and take what all of them need for a moment.
"""

from __future__ import annotations

import math
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

IN_FLIGHT = 6
FIRST_ONES = 2
# A batch that takes so much is large enough to see it: three of half of it said of BERT-small's layers 5 to 8 that they leave 5
# to 15 % of gaps, by the kind of device; six of it say 12 to 15. Less growth is lost among pages of 2 MiB.
ENOUGH_BYTES = 64 * 2**20
LEAST_GROWTH_BYTES = 16 * 2**20
_SEED = 0


def held_sample_bytes(
    stage_graph: StageGraph, timings: list[Timing], *, memory_budget: int, check_halt: Callable[[], None]
) -> float:
    """Bytes for each sample of a further micro-batch; 0 where that can't be seen, or is too little to be seen.

    timings: of the stage, ascending. memory_budget: bytes that may be taken beyond parameters. On the CPU alone: an
    accelerator has an allocator of its own. check_halt: called before each forward; whatever it raises goes through.
    """
    batch_size = held_batch_size(timings, memory_budget=memory_budget)
    if batch_size is None:
        return 0.0
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
    grown = sizes[-1] - sizes[FIRST_ONES - 1]
    return grown / (IN_FLIGHT - FIRST_ONES) / batch_size if grown >= LEAST_GROWTH_BYTES else 0.0


def held_batch_size(timings: list[Timing], *, memory_budget: int) -> int | None:
    """The smallest that was tried or lies between such, and takes enough; None where memory doesn't hold so many of any."""
    if not timings or timings[-1].peak_bytes <= 0:
        return None
    least, largest = timings[0].batch_size, timings[-1].batch_size
    sample_bytes = timings[-1].peak_bytes / largest
    enough = min(largest, max(least, math.ceil(ENOUGH_BYTES / sample_bytes)))
    fitting = int(memory_budget / (IN_FLIGHT * sample_bytes))
    return min(enough, fitting) if fitting >= least else None


def _forward(
    module: StageModule, batch_size: int, *, seed: int
) -> tuple[Sequence[torch.Tensor], Sequence[GradientEdge | None]]:
    """What a worker keeps of it."""
    inputs = random_inputs_for(module, batch_size, seed=seed)
    return inputs, edges_of(module.forward(batch_size, inputs, draw=None))
