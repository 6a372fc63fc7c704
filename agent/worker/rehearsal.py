"""Before the first round: the stage computes as much as it ever holds at once, on random numbers.

Memory that is not there is found now, with a message, and not in the middle of an epoch; and the first round finds the
allocator, the kernels' choices and the pages warm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import GradientEdge

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.draws import DrawKey
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.probe import random_inputs_for
from edgeswarm.model.stage import StageModule

from ..out_of_memory import is_out_of_memory
from .accelerator import peak_bytes, reset_peak, wait_for
from .backward import edges_of, run_backward, run_later


def rehearse(
    module: StageModule,
    *,
    batch: int,
    in_flight: int,
    device: str,
    check_halt: Callable[[], None],
    weights_apart: bool = False,
    in_full: int | None = None,
) -> int:
    """Runs `in_flight` forwards of `batch` samples, then their backwards; returns the peak of memory in bytes.

    weights_apart: the schedule has gradients of weights apart; then all of them wait until the last backward is done.
    in_full: so many are before their backward at most; None for all of them.
    Leaves parameters and buffers alone, and zeros in the gradients. Raises EdgeswarmError where memory ends.
    """
    reset_peak(module.device.type)
    graph = module.graph
    try:
        held: list[list[tuple[GradientEdge, torch.Size, torch.dtype]]] = []
        left = [LaterWeights() if weights_apart else None for _ in range(in_flight)]

        def backward() -> None:
            roots = held.pop()
            check_halt()
            if roots:
                zeros = [torch.zeros(shape, dtype=dtype, device=module.device) for _, shape, dtype in roots]
                run_backward([edge for edge, _, _ in roots], zeros)

        for index in range(in_flight):
            if len(held) == in_full:
                backward()
            inputs = random_inputs_for(module, batch, seed=index)
            # In its turn: the feed's thread may be transforming already, and draws from the same generators.
            draw = DrawKey(seed=0, round=0, micro_batch=index, first_sample=0, end_sample=batch)
            outputs = module.forward(batch, inputs, draw=draw, check_halt=check_halt, later=left[index])
            edges = zip(edges_of(outputs), outputs, strict=True)
            held.append([(edge, output.shape, output.dtype) for edge, output in edges if edge is not None])
            del inputs, outputs, edges
        while held:
            backward()
        for later in reversed(left):
            if later is not None:
                run_later(later, check_halt=check_halt)
        wait_for(module.device.type)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise EdgeswarmError(
            ErrorCode.NO_PLAN_FITS,
            f"{device} has too little memory for layers {graph.first_layer} to {graph.end_layer - 1} "
            f"with {batch} samples and {in_flight} micro-batches in flight.",
            "Plan with a smaller --micro-batch, or with another device.",
            detail=str(error),
        ) from error
    finally:
        module.take_batch_statistics()
    for parameter in module.parameters.values():
        if parameter.grad is not None:
            parameter.grad.zero_()
    return peak_bytes(module.device.type)
