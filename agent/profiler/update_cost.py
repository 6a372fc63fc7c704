"""What an optimizer's step costs on this device, with the zeroing and dividing of gradients around it.

    seconds of a step = tensors x (seconds a tensor) + bytes x (seconds a byte)

Two sets of parameters tell the two apart: many small ones, one large one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SMALL_TENSORS = 32
SMALL_ELEMENTS = 16
LARGE_ELEMENTS = 1 << 19  # 2 MiB of float32: beyond the caches of a small device's core
STEPS = 4

#: By what they keep of a parameter: nothing, its momentum, Adam's two moments.
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-6),
}


@dataclass(frozen=True)
class UpdateCost:
    """CPU seconds of a step of one kind of optimizer, for each tensor and for each byte of parameters."""

    optimizer: str
    tensor_seconds: float
    byte_seconds: float


def measure_updates(accelerator: str) -> list[UpdateCost]:
    """Each kind of optimizer in turn, in float32."""
    costs = []
    for name in OPTIMIZERS:
        small = _step_seconds(name, [SMALL_ELEMENTS] * SMALL_TENSORS, accelerator)
        large = _step_seconds(name, [LARGE_ELEMENTS], accelerator)
        tensor_seconds = small / SMALL_TENSORS
        costs.append(UpdateCost(name, tensor_seconds, max(0.0, large - tensor_seconds) / (4 * LARGE_ELEMENTS)))
    return costs


def _step_seconds(name: str, sizes: list[int], accelerator: str) -> float:
    """CPU seconds of one step after a first one, the least of a few; on a GPU those of the clock."""
    parameters = [torch.nn.Parameter(torch.randn(size, device=accelerator)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = OPTIMIZERS[name](parameters)
    now = time.process_time if accelerator == "cpu" else time.perf_counter
    taken = []
    for _ in range(1 + STEPS):
        started = now()
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(1.0)
        optimizer.step()
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()
        if accelerator == "cuda":
            torch.cuda.synchronize()
        taken.append(now() - started)
    return min(taken[1:])
