"""Products of matrices in float32 by oneDNN, where PyTorch gives them to a library that is slow there: the same sums.

On x86 PyTorch's products go to MKL, which keeps its kernels of 512 bits to Intel's own processors. On others with such registers
oneDNN, which every PyTorch for x86 brings for its convolutions, takes half the time (docs/benchmarks.md):

    result [rows, out]             = input [rows, in]        x  weight [out, in] transposed  +  bias
    gradient of input [rows, in]   = gradient [rows, out]    x  weight
    gradient of weight [out, in]   = gradient transposed     x  input       ROWS_AT_ONCE rows after the other: oneDNN's first
                                                                            factor has to lie row by row, and is copied
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from . import plain_products as plain
from .later_weights import Gradients, alone, later_of

ROWS_AT_ONCE = 1024
# Multiplications and additions below which calling it takes longer than it saves.
_LEAST_WORK = 1 << 18
_PROCESSORS = Path("/proc/cpuinfo")
_OWN_KERNELS_OF_MKL = "GenuineIntel"


def own_products(device: torch.device) -> dict[str, Callable[..., torch.Tensor]]:
    """By packet of ATen, what computes it otherwise than PyTorch does on this device; empty where PyTorch does as well."""
    return {"linear": linear, "addmm": addmm} if device.type == "cpu" and are_faster() else {}


@functools.cache
def are_faster() -> bool:
    """Whether products are faster by oneDNN here. Told by the kind of processor: like ones compute the same bits."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and _vendor() not in ("", _OWN_KERNELS_OF_MKL)
    )


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """What `aten.linear` gives. values: [..., in]; weight: [out, in]."""
    is_bias = bias is None or bias.shape == weight.shape[:1]
    if not (is_bias and _is_ours(values, weight, rows=values.numel() // max(1, values.shape[-1]))):
        return plain.linear(values, weight, bias)
    found: torch.Tensor = _Linear.apply(values, weight, bias)  # type: ignore[no-untyped-call]
    return found


def addmm(
    added: torch.Tensor, values: torch.Tensor, weight: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """What `aten.addmm` gives. values: [rows, in]; weight: [in, out]; added: ours where it is [out]."""
    is_bias = added.dim() == 1 and len(added) == weight.shape[1] and beta == 1 and alpha == 1
    if not (is_bias and _is_ours(values, weight, rows=len(values))):
        return plain.addmm(added, values, weight, beta=beta, alpha=alpha)
    found: torch.Tensor = _Linear.apply(values, weight.t(), added)  # type: ignore[no-untyped-call]
    return found


def _is_ours(values: torch.Tensor, weight: torch.Tensor, *, rows: int) -> bool:
    return (
        values.dtype == weight.dtype == torch.float32
        and weight.dim() == 2
        and values.dim() > 1
        and rows * weight.numel() >= _LEAST_WORK
        and not isinstance(values, FakeTensor)
    )


def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[rows, n] of left [rows, m] and right [n, m]."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        ctx.later = later_of(weight, bias)
        result = _product(values, weight, bias)
        ctx.later.will_be_free(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = alone(ctx)
        gradient, rows = ctx.later.laid_down(gradient).flatten(0, -2), values.flatten(0, -2)
        of_values, of_weight, of_bias = ctx.needs_input_grad

        def of_weights() -> Gradients:
            weights = _summed_product(gradient, rows) if of_weight else None
            return weights, gradient.sum(0) if of_bias else None

        before = _product(gradient, weight.t()).view(values.shape) if of_values else None
        return before, *ctx.later.put_off(of_weights)


def _summed_product(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[out, in] of gradient [rows, out] and values [rows, in]: the sum over the rows."""
    pieces = zip(torch.split(gradient, ROWS_AT_ONCE), torch.split(values, ROWS_AT_ONCE), strict=True)
    total: torch.Tensor | None = None
    for of_result, of_values in pieces:
        found = _product(of_result.t(), of_values.t())
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


def _vendor() -> str:
    """Of the processor, as it names itself; empty where that isn't known."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
