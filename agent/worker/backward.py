"""A backward pass as `torch.autograd.backward` does it, without the sympy that it loads.

Before it starts its engine, torch compares the shapes of outputs and gradients in a way that also knows symbolic ones. With
torch 2.13 that imports 480 modules: 0.4 s of CPU, three on a device with an eighth of a core, and 33 MB. The engine
compares them once more by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from edgeswarm.model.later_weights import LaterWeights


def edges_of(outputs: Sequence[torch.Tensor]) -> list[GradientEdge | None]:
    """The outputs' places in the graph, which are all that their backward needs; None where nothing is trained before them.

    A tensor would be held with its values until then, by every micro-batch in flight. The edge is that of a view: before PyTorch
    2.9 an edge doesn't keep what a function written in Python made alive, and one of C++ behind it does.
    """
    return [get_gradient_edge(output.view_as(output)) if output.requires_grad else None for output in outputs]


def run_backward(outputs: Sequence[torch.Tensor | GradientEdge], gradients: Sequence[torch.Tensor | None]) -> None:
    """Adds the gradients of what the outputs were computed from to its leaves.

    gradients: of each output in its shape; None for a tensor of a single number whose gradient is 1. Raises RuntimeError.
    """
    given = tuple(
        _one(output) if gradient is None else gradient for output, gradient in zip(outputs, gradients, strict=True)
    )
    keep_graph = create_graph = False
    Variable._execution_engine.run_backward(
        tuple(outputs), given, keep_graph, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )


def run_later(later: LaterWeights, *, check_halt: Callable[[], None]) -> None:
    """Adds the gradients of weights that a backward has left to the leaves. check_halt: called between layers; what it raises
    goes through.
    """
    for edges, gradients in later.take():
        check_halt()
        if edges:
            run_backward(edges, gradients)
        del edges, gradients  # before the next ones are there


def _one(output: torch.Tensor | GradientEdge) -> torch.Tensor:
    assert isinstance(output, torch.Tensor)
    return torch.ones_like(output)
