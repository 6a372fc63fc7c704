"""What a layer's backward takes where gradients of weights come apart (model/later_weights.py).

    in one go   |== backward ==|
    apart       |= rest =| weights |        together a little longer: what both read is fetched twice

By the processor's seconds of a few in each form, by turns, at one batch size.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.probe import random_like
from edgeswarm.model.stage import StageModule

from ..worker.backward import run_backward, run_later

# About what micro-batches have between stages. Larger ones would take long for what they tell.
_SAMPLES = 16
_TURNS = 3
# Of both parts, in times of a backward in one go: they do all of its work, and beyond the other end something was in the way.
_LEAST, _MOST = 1.0, 1.5


@dataclass(frozen=True)
class Apart:
    """A backward in two parts, in times of one in one go. rest: up to what the stage before waits for."""

    rest: float = 1.0
    weights: float = 0.0


def size_for_apart(batch_sizes: Iterable[int]) -> int | None:
    """Of those that were timed, the one to measure at; None where there are none."""
    return min(batch_sizes, key=lambda size: abs(math.log(size / _SAMPLES)), default=None)


def measure_apart(
    module: StageModule, batch_size: int, inputs: Sequence[torch.Tensor], *, check_halt: Callable[[], None]
) -> Apart:
    """inputs: as for a forward of so many samples. Raises what check_halt does, and what computing raises without memory."""
    weights_wait, _, _ = _backward(module, batch_size, inputs, is_apart=True)  # the first time kernels are made
    if not weights_wait:
        return Apart()
    taken: list[tuple[float, float, float]] = []
    for _ in range(_TURNS):
        check_halt()
        _, in_one_go, _ = _backward(module, batch_size, inputs, is_apart=False)
        check_halt()
        taken.append((in_one_go, *_backward(module, batch_size, inputs, is_apart=True)[1:]))
    at_once, rest, weights = (statistics.median(seconds) for seconds in zip(*taken, strict=True))
    if not (at_once > 0 and rest + weights > 0):
        return Apart()
    whole = min(max((rest + weights) / at_once, _LEAST), _MOST)
    return Apart(whole * rest / (rest + weights), whole * weights / (rest + weights))


def _backward(
    module: StageModule, batch_size: int, inputs: Sequence[torch.Tensor], *, is_apart: bool
) -> tuple[bool, float, float]:
    """Whether any weights waited; seconds of the backward, and of the gradients of weights."""
    later = LaterWeights() if is_apart else None
    outputs = module.forward(batch_size, inputs, draw=None, later=later)
    module.take_batch_statistics()
    needing = [output for output in outputs if output.requires_grad]
    if not needing:
        return False, 0.0, 0.0
    gradients = [random_like(output) for output in needing]
    started = _seconds(module.device)
    run_backward(needing, gradients)
    between = _seconds(module.device)
    waited = later is not None and len(later) > 0
    if later is not None:
        run_later(later, check_halt=lambda: None)
    ended = _seconds(module.device)
    for tensor in inputs:
        tensor.grad = None
    return waited, between - started, ended - between


def _seconds(device: torch.device) -> float:
    """Of the processor; of a card, which is one that never pauses, by the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
