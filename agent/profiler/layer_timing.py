"""Times one layer's forward and backward at growing batch sizes, as far as memory and patience go.

    warm-up | forward backward | forward backward | ...   medians of each
              \\_ 3 pairs at least, 20 ms of them at least; one pair where a pair takes long _/

A processor with a quota computes at full speed for a moment and then stands still for one: short pairs are quick or slow,
and no median says what a round will take. Where that is seen, pairs go on for longer, and their means count.

The gradients of parameters are summed over the repeats, as a round sums them over its micro-batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from edgeswarm.model.probe import random_inputs, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph

from ..worker.backward import run_backward
from ..worker.memory import anonymous_bytes, give_back_free_memory, peak_anonymous_bytes, reset_peak

LEAST_REPEATS = 3
MOST_REPEATS = 200
SHORTEST_TOTAL_SECONDS = 0.02
SHORTEST_STALLED_SECONDS = 0.2  # many times the period of a usual quota
STALLED_FRACTION = 0.2  # of the time, in which the processor did nothing for us
STEADY_SECONDS = 0.2  # of one pair: so long that one measurement after the warm-up says it
_SEED = 0


@dataclass(frozen=True)
class Timing:
    """Seconds of one forward and one backward of a layer at a batch size, medians, stretched by the slow-down."""

    batch_size: int
    forward_seconds: float
    backward_seconds: float

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


def time_layer(
    stage_graph: StageGraph,
    batch_sizes: Sequence[int],
    *,
    longest_seconds: float,
    memory_budget: int,
    slow_down: float,
    check_halt: Callable[[], None],
    accelerator: str = "cpu",
) -> list[Timing]:
    """The layer's curve over `batch_sizes` (ascending); shorter where the next size would take too much.

    longest_seconds: no larger batch is tried once one forward and backward takes longer (0 or less: no limit).
    memory_budget: bytes that a batch may take beyond the layer itself. slow_down: factor on every figure.
    check_halt: called between repeats; whatever it raises goes through.
    Raises: GRAPH_REFUSED where this torch can't build the layer; nothing where memory ends: the curve ends there.
    """
    timings: list[Timing] = []
    needs: list[tuple[int, int]] = []
    module = StageModule(stage_graph, random_tensors(stage_graph, seed=_SEED, device=accelerator), accelerator)
    try:
        for batch_size in batch_sizes:
            if expected_bytes(needs, batch_size) > memory_budget:
                break
            try:
                timing, need = _time_batch(module, batch_size, slow_down=slow_down, check_halt=check_halt)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                break
            finally:
                free_memory(accelerator)
            timings.append(timing)
            needs.append((batch_size, need))
            if 0 < longest_seconds < timing.seconds:
                break
    finally:
        del module
        free_memory(accelerator)
    return timings


def expected_bytes(needs: Sequence[tuple[int, int]], batch_size: int) -> int:
    """What `batch_size` will need, from (batch size, bytes) measured so far; 0 where nothing was.

    In proportion to the largest so far, or along the last two where that is more (memory that grows faster than the batch
    means that small ones were served from what lay around).
    """
    if not needs:
        return 0
    last_size, last_bytes = needs[-1]
    proportional = last_bytes * batch_size // last_size
    if len(needs) < 2:
        return proportional
    before_size, before_bytes = needs[-2]
    slope = (last_bytes - before_bytes) / (last_size - before_size)
    return max(proportional, int(last_bytes + slope * (batch_size - last_size)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how Python, torch's CPU allocator or CUDA say that there is no memory left."""
    text = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text.lower()


def free_memory(accelerator: str) -> None:
    """Gives back what the allocators keep, so that the next layer finds the memory that this one found."""
    if accelerator == "cuda":
        torch.cuda.empty_cache()
    give_back_free_memory()


def _time_batch(
    module: StageModule, batch_size: int, *, slow_down: float, check_halt: Callable[[], None]
) -> tuple[Timing, int]:
    """(the timing, bytes that it took at its peak)."""
    memory = _PeakMemory(module.device)
    inputs = random_inputs(module.graph, batch_size, seed=_SEED, device=module.device)
    warm_up = sum(_time_pair(module, batch_size, inputs))
    pairs: list[tuple[float, float]] = []
    total = 0.0

    def repeat(least: int, shortest_seconds: float) -> None:
        nonlocal total
        while len(pairs) < least or (total < shortest_seconds and len(pairs) < MOST_REPEATS):
            check_halt()
            pairs.append(_time_pair(module, batch_size, inputs))
            total += sum(pairs[-1])

    computed_before = time.process_time()
    repeat(LEAST_REPEATS if warm_up < STEADY_SECONDS else 1, SHORTEST_TOTAL_SECONDS)
    computed = time.process_time() - computed_before
    average: Callable[[list[float]], float] = statistics.median
    if module.device.type == "cpu" and computed < (1.0 - STALLED_FRACTION) * total:
        average = statistics.fmean
        repeat(1, SHORTEST_STALLED_SECONDS)
    forward, backward = (average(list(seconds)) * slow_down for seconds in zip(*pairs, strict=True))
    return Timing(batch_size, forward, backward), memory.taken()


def _time_pair(module: StageModule, batch_size: int, inputs: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Seconds of one forward and of one backward. A layer where nothing is trained has no backward."""
    started = _now(module.device)
    outputs = module.forward(batch_size, inputs, draw=None)
    forward_done = _now(module.device)
    module.take_batch_statistics()
    needing = [output for output in outputs if output.requires_grad]
    if not needing:
        return forward_done - started, 0.0
    gradients = [torch.randn_like(output) for output in needing]
    backward_started = _now(module.device)
    run_backward(needing, gradients)
    backward_done = _now(module.device)
    for tensor in inputs:
        # A pipeline's inputs are new for each micro-batch: nothing is summed into them.
        tensor.grad = None
    return forward_done - started, backward_done - backward_started


def _now(device: torch.device) -> float:
    """Seconds, after everything that was handed to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class _PeakMemory:
    """How much memory is taken from now on, at its peak."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        else:
            reset_peak()
            self._before = anonymous_bytes()

    def taken(self) -> int:
        """Bytes. Where the kernel doesn't let a process reset its peak, it is that of its whole life: too much, never
        too little."""
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else peak_anonymous_bytes()
        return max(0, peak - self._before)
