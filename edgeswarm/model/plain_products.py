"""Convolutions and products of matrices as PyTorch has them, but that gradients of their weights can come later.

Without anybody who collects these (later_weights.py) they are PyTorch's own functions, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .later_weights import Gradients, alone, are_wanted_later, later_of

Pair = tuple[int, int]

_CONVOLUTION_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def conv2d(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *geometry: Any, **more: Any
) -> torch.Tensor:
    """What `aten.conv2d` gives. geometry: stride, padding, dilation and groups, as far as they are given."""
    if not are_wanted_later():
        return functional.conv2d(image, weight, bias, *geometry, **more)
    given = {**_CONVOLUTION_DEFAULTS, **dict(zip(_CONVOLUTION_DEFAULTS, geometry, strict=False)), **more}
    pads = pads_of(given["padding"], weight.shape[2:])
    dilation = pair(given["dilation"])
    if image.dim() != 4 or pads is None or (isinstance(given["padding"], str) and dilation != (1, 1)):
        return functional.conv2d(image, weight, bias, **given)
    pairs = (pair(given["stride"]), pads, dilation)
    found: torch.Tensor = _Convolution.apply(image, weight, bias, (pairs, given["groups"]))  # type: ignore[no-untyped-call]
    return found


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """What `aten.linear` gives. values: [..., in]; weight: [out, in]."""
    is_bias = bias is None or bias.shape == weight.shape[:1]
    if not (is_bias and are_wanted_later()) or values.dim() < 2 or weight.dim() != 2:
        return functional.linear(values, weight, bias)
    found: torch.Tensor = _Linear.apply(values, weight, bias)  # type: ignore[no-untyped-call]
    return found


def addmm(
    added: torch.Tensor, values: torch.Tensor, weight: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """What `aten.addmm` gives. values: [rows, in]; weight: [in, out]."""
    is_bias = added.dim() == 1 and len(added) == weight.shape[1] and beta == 1 and alpha == 1
    if not (is_bias and are_wanted_later()):
        return torch.addmm(added, values, weight, beta=beta, alpha=alpha)
    found: torch.Tensor = _Linear.apply(values, weight.t(), added)  # type: ignore[no-untyped-call]
    return found


# By packet of ATen.
PLAIN_PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {"conv2d": conv2d, "linear": linear, "addmm": addmm}


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        image: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: tuple[tuple[Pair, ...], int],
    ) -> torch.Tensor:
        """geometry: stride, padding and dilation; groups."""
        ctx.save_for_backward(image, weight)
        ctx.geometry = (stride, padding, dilation), groups = geometry
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.later = later_of(weight, bias)
        result = functional.conv2d(image, weight, bias, stride, padding, dilation, groups)
        ctx.later.will_be_free(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        image, weight = alone(ctx)
        bias_shape, (pairs, groups) = ctx.bias_shape, ctx.geometry
        gradient = ctx.later.laid_down(gradient)
        of_image, of_weight, of_bias, *_ = ctx.needs_input_grad

        def gradients(wanted: tuple[bool, bool, bool]) -> tuple[torch.Tensor | None, ...]:
            found: tuple[torch.Tensor | None, ...] = torch.ops.aten.convolution_backward(
                gradient, image, weight, bias_shape, *pairs, False, (0, 0), groups, wanted
            )
            return found

        def of_weights() -> Gradients:
            _, weights, biases = gradients((False, of_weight, of_bias))
            return weights, biases

        before = gradients((True, False, False))[0] if of_image else None
        return before, *ctx.later.put_off(of_weights), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        ctx.later = later_of(weight, bias)
        result = functional.linear(values, weight, bias)
        ctx.later.will_be_free(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = alone(ctx)
        of_values, of_weight, of_bias = ctx.needs_input_grad
        gradient = ctx.later.laid_down(gradient)
        rows = gradient.flatten(0, -2)

        def of_weights() -> Gradients:
            weights = rows.t() @ values.flatten(0, -2) if of_weight else None
            return weights, rows.sum(0) if of_bias else None

        return gradient @ weight if of_values else None, *ctx.later.put_off(of_weights)


def pair(value: Sequence[int] | int) -> Pair:
    """Of one number, or of a list of one or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def pads_of(padding: Sequence[int] | int | str, kernel: Sequence[int]) -> Pair | None:
    """Likewise; of words what they mean without dilation, None where that differs from one edge to the other."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        return (kernel[0] // 2, kernel[1] // 2) if all(taps % 2 for taps in kernel) else None
    assert not isinstance(padding, str), "torch knows no other word"
    return pair(padding)
