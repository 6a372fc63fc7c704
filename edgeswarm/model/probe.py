"""Made-up tensors for a stage: for timing a layer, and for rehearsing a stage's peak memory before there are weights."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .stage import StageModule
from .stage_graph import StageGraph
from .values import LiveValue, TensorSpec

_DIFFERENT = 1 << 14


def random_tensors(
    stage_graph: StageGraph, *, seed: int, device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """A tensor for each that the stage holds, by original name, ready for StageModule.

    Parameters are small numbers around 0, other floats are positive (a running variance must be); whole numbers are 0.
    """
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: _tensor(spec, generator).to(device) for spec in stage_graph.tensors}


def random_inputs(
    stage_graph: StageGraph, batch: int, *, seed: int, device: torch.device | str = "cpu"
) -> list[torch.Tensor]:
    """The stage's inputs for `batch` samples, as leaves that want a gradient where one goes back.

    Floats are between 0 and 1: probabilities, and as whole numbers an index into every table. Others are their fillers.
    """
    generator = torch.Generator().manual_seed(seed)
    return [
        _input(value, batch, generator).to(device).requires_grad_(value.requires_grad) for value in stage_graph.inputs
    ]


def random_inputs_for(module: StageModule, batch: int, *, seed: int) -> list[torch.Tensor]:
    """The same where the stage computes, as it wants them to lie in memory."""
    drawn = random_inputs(module.graph, batch, seed=seed, device=module.device)
    inputs = module.arranged([tensor.detach() for tensor in drawn])
    return [
        tensor.requires_grad_(value.requires_grad) for tensor, value in zip(inputs, module.graph.inputs, strict=True)
    ]


def random_like(tensor: torch.Tensor) -> torch.Tensor:
    """Floats from N(0, 1) of that shape, laid out likewise. The same _DIFFERENT numbers over and over: drawing as many as a layer
    gives takes about as long as the layer.
    """
    return _filled(torch.empty_like(tensor, requires_grad=False), torch.Generator().manual_seed(0))


def _filled(
    made: torch.Tensor, generator: torch.Generator, *, draw: Callable[..., torch.Tensor] = torch.randn
) -> torch.Tensor:
    """The tensor, which is dense in memory."""
    in_storage = made.as_strided((made.numel(),), (1,))
    drawn = draw(min(_DIFFERENT, made.numel()), generator=generator, dtype=made.dtype).to(made.device)
    whole = made.numel() // _DIFFERENT * _DIFFERENT
    if whole:
        in_storage[:whole].view(-1, _DIFFERENT).copy_(drawn)
    in_storage[whole:] = drawn[: made.numel() - whole]
    return made


def _input(value: LiveValue, batch: int, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, value.dtype)
    shape = value.with_batch(batch)
    if dtype.is_floating_point:
        return _filled(torch.empty(shape, dtype=dtype), generator, draw=torch.rand)
    return torch.full(shape, value.filler, dtype=dtype)


def _tensor(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if not dtype.is_floating_point:
        return torch.zeros(spec.shape, dtype=dtype)
    drawn = _filled(torch.empty(spec.shape, dtype=dtype), generator)
    return drawn * 0.05 if spec.kind == "parameter" else drawn.abs() + 0.5
