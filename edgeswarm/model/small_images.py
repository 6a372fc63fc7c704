"""Convolutions of small images, computed otherwise than PyTorch does on x86 processors: the same sums, several times as fast.

Deep in a network images shrink to a few pixels, and oneDNN has no good kernels for them (docs/benchmarks.md):

    one pixel                            all but one of a kernel's taps meet padding: a matrix product
    a kernel of one tap, few pixels or   a matrix product, where these are faster (matrix_products.py)
    few samples
    a channel by itself (depthwise),     forward and the image's gradient as PyTorch does; the weights' gradient tap by tap,
    the kernel larger than the image     each a sum of products over the pixels that the tap meets

    a kernel of 3 x 3 over 2 x 2 pixels, padding 1: tap (0, 1) meets the two below the edge

        . t .        out[1, 0] and out[1, 1] saw in[0, 0] and in[0, 1] through it
        x x
        x x
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .later_weights import Gradients, alone, later_of
from .matrix_products import are_faster as products_are_faster
from .matrix_products import linear
from .plain_products import Pair, conv2d, pads_of, pair
from .plain_products import linear as plain_linear

# Kernels of one tap: with fewer samples PyTorch has MKL compute them, where it has one thread; over so few pixels oneDNN takes up
# to three times as long as for the product (`bench.memory_layout` has the models'), over more the same.
_BATCH_OF_ONEDNN = 16
_FEW_PIXELS = 4

_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def convolve(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *geometry: Any, **more: Any
) -> torch.Tensor:
    """What `aten.conv2d` gives, of an image [batch, channels, height, width] that lies channels last.

    geometry: stride, padding, dilation and groups, as far as they are given; more: those that are given by name.
    """
    given = {**_DEFAULTS, **dict(zip(_DEFAULTS, geometry, strict=False)), **more}
    stride, pads, groups = pair(given["stride"]), pads_of(given["padding"], weight.shape[2:]), given["groups"]
    if image.dim() == 4 and image.dtype == torch.float32 and pair(given["dilation"]) == (1, 1) and pads is not None:
        if groups == 1 and (_is_one_pixel(image, weight, pads) or _is_slow_product(image, weight, stride, pads)):
            return _product(image, weight, bias, pads)
        is_depthwise = groups == image.shape[1] == weight.shape[0]
        if is_depthwise and any(taps > pixels for taps, pixels in zip(weight.shape[2:], image.shape[2:], strict=True)):
            found: torch.Tensor = _Depthwise.apply(image, weight, bias, (stride, pads))  # type: ignore[no-untyped-call]
            return found
    return conv2d(image, weight, bias, **given)


def _is_one_pixel(image: torch.Tensor, weight: torch.Tensor, pads: Pair) -> bool:
    """Of the image, and of what is made of it."""
    return all(
        pixels == 1 and pad < kernel and 2 * pad + 1 == kernel
        for pixels, kernel, pad in zip(image.shape[2:], weight.shape[2:], pads, strict=True)
    )


def _is_slow_product(image: torch.Tensor, weight: torch.Tensor, stride: Pair, pads: Pair) -> bool:
    """A convolution of single pixels that PyTorch makes a product of MKL's, or that oneDNN has no good kernel for."""
    if weight.shape[2:] != (1, 1) or stride != (1, 1) or pads != (0, 0) or not products_are_faster():
        return False
    is_mkl = len(image) < _BATCH_OF_ONEDNN and torch.get_num_threads() == 1
    return is_mkl or image.shape[2] * image.shape[3] <= _FEW_PIXELS


def _product(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Pair) -> torch.Tensor:
    met = weight.flatten(1) if weight.shape[2:] == (1, 1) else weight[:, :, pads[0], pads[1]]
    # The batch's rows as they lie; what comes of it lies channels last again.
    product = linear if products_are_faster() else plain_linear
    return product(image.permute(0, 2, 3, 1), met, bias).permute(0, 3, 1, 2)


class _Depthwise(torch.autograd.Function):
    """A convolution of each channel by itself; see the module."""

    @staticmethod
    def forward(
        ctx: Any, image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: tuple[Pair, Pair]
    ) -> torch.Tensor:
        """geometry: stride and padding."""
        ctx.save_for_backward(image, weight)
        ctx.stride, ctx.padding = geometry
        ctx.later = later_of(weight, bias)
        result = functional.conv2d(image, weight, bias, ctx.stride, ctx.padding, 1, weight.shape[0])
        ctx.later.will_be_free(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        image, weight = alone(ctx)
        gradient = ctx.later.laid_down(gradient)
        kernel, geometry = weight.shape[2:], {"stride": ctx.stride, "padding": ctx.padding}
        _, of_weight, of_bias, _ = ctx.needs_input_grad

        def of_weights() -> Gradients:
            weights = _tap_by_tap(gradient, image, kernel, **geometry) if of_weight else None
            return weights, gradient.sum((0, 2, 3)) if of_bias else None

        of_image = None
        if ctx.needs_input_grad[0]:
            of_image = torch.ops.aten.convolution_backward(
                *(gradient, image, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), weight.shape[0]),
                (True, False, False),
            )[0]
        return of_image, *ctx.later.put_off(of_weights), None


def _tap_by_tap(
    gradient: torch.Tensor, image: torch.Tensor, kernel: Sequence[int], *, stride: Pair, padding: Pair
) -> torch.Tensor:
    """The weights' gradient [channels, 1, *kernel] of a depthwise convolution, from that of its output."""
    rows, columns = (
        [
            _met(tap, image.shape[2 + axis], gradient.shape[2 + axis], stride[axis], padding[axis])
            for tap in range(kernel[axis])
        ]
        for axis in range(2)
    )
    pixels, gradients = image.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    found = image.new_zeros((*kernel, image.shape[1]))
    for place, (above, row) in enumerate(rows):
        for side, (left, column) in enumerate(columns):
            seen = gradients[:, above, left]
            if seen.numel():
                torch.sum(seen * pixels[:, row, column], (0, 1, 2), out=found[place, side])
    return found.permute(2, 0, 1).unsqueeze(1)


def _met(tap: int, pixels: int, outputs: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Along one axis: the outputs for which a tap meets a pixel of the image, and these pixels."""
    first = max(0, -(-(padding - tap) // stride))
    end = max(first, min(outputs, (pixels - 1 + padding - tap) // stride + 1))
    begin = first * stride + tap - padding
    return slice(first, end), slice(begin, max(begin, begin + (end - first - 1) * stride + 1), stride)
