"""Dropout on a processor, alone and in attention: fewer random numbers, and a byte kept for each value in place of four.

PyTorch draws a random number for each value, one after the other, and keeps a float for it; drawing took longer than softmax and
its gradient. Here a number of 64 bits does for four values, which are dropped with a probability of a multiple of 1/65536: what
stays is divided by the probability that really was. What is drawn follows from PyTorch's default generator.

    64 random bits   |  1A02  |  F317  |  0C55  |  8E90  |      dropped below 0.1 x 65536 = 199A (hex): here the third
    kept             |   1    |   1    |   0    |   1    |      a byte each, for the backward pass

Attention with dropout keeps queries, keys, values and weights before dropout, and drops these once more in the backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

_STEPS = 1 << 16
_IN_ONE_NUMBER = 4


def dropout(values: torch.Tensor, probability: float, train: bool) -> torch.Tensor:
    """What `aten.dropout` gives, with other random numbers."""
    if not (train and _is_ours(values, probability)):
        result: torch.Tensor = torch.ops.aten.dropout(values, probability, train)
        return result
    dropped: torch.Tensor = _Dropout.apply(values, probability)  # type: ignore[no-untyped-call]
    return dropped


def attention(  # noqa: PLR0917 - as PyTorch calls it
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What `aten.scaled_dot_product_attention` gives, with other random numbers where it drops weights.

    query: [..., length, width]; key, value: [..., other length, width].
    """
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and query.dtype == key.dtype == value.dtype
    masked = attn_mask is not None and (is_causal or attn_mask.requires_grad)
    if not (_is_ours(query, dropout_p) and alike) or masked or enable_gqa:
        result: torch.Tensor = torch.ops.aten.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return result
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    attended: torch.Tensor = _Attention.apply(query, key, value, attn_mask, dropout_p, factor)  # type: ignore[no-untyped-call]
    return attended


def _is_ours(values: torch.Tensor, probability: float) -> bool:
    is_usual = values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)
    return is_usual and probability > 0 and _dropped_steps(probability) < _STEPS


def _dropped_steps(probability: float) -> int:
    return round(probability * _STEPS)


def _draw(like: torch.Tensor, probability: float) -> tuple[torch.Tensor, float]:
    """Booleans of this shape, false where a value is dropped; and by what the others are multiplied."""
    steps, count = _dropped_steps(probability), like.numel()
    factor = _STEPS / (_STEPS - steps)
    if isinstance(like, FakeTensor):
        return torch.empty_like(like, dtype=torch.bool), factor
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits: npt.NDArray[np.uint16] = np.random.SFC64(seed).random_raw(-(-count // _IN_ONE_NUMBER)).view(np.uint16)
    return torch.from_numpy(bits[:count] >= steps).view(like.shape), factor


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, probability: float) -> torch.Tensor:
        kept, ctx.factor = _draw(values, probability)
        ctx.save_for_backward(kept)
        return torch.mul(values, kept).mul_(ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return torch.mul(gradient, kept).mul_(ctx.factor), None


class _Attention(torch.autograd.Function):
    """weights = softmax(scale query key^T + mask); result = dropout(weights) value. Factors go to what is smallest."""

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        probability: float,
        scale: float,
    ) -> torch.Tensor:
        queries, keys, values = (part.reshape(-1, *part.shape[-2:]).contiguous() for part in (query, key, value))
        scores = torch.bmm(queries * scale, keys.transpose(1, 2))
        if mask is None:
            weights = torch.softmax(scores, -1)
        else:
            scores = scores.view(*query.shape[:-1], key.shape[-2])
            scores = scores.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else scores.add_(mask)
            # A row of which nothing is left attends to nothing, as in PyTorch.
            weights = torch.ops.aten._safe_softmax(scores, -1).view(len(queries), *scores.shape[-2:])
        kept, ctx.factor = _draw(weights, probability)
        ctx.scale, ctx.shapes = scale, (query.shape, key.shape, value.shape)
        ctx.save_for_backward(queries, keys, values, weights, kept)
        attended = torch.bmm(weights * kept, values).mul_(ctx.factor)
        return attended.view(*query.shape[:-1], value.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, keys, values, weights, kept = ctx.saved_tensors
        scaled = gradient.reshape(-1, *gradient.shape[-2:]) * ctx.factor
        of_values = torch.bmm((weights * kept).transpose(1, 2), scaled)
        of_weights = torch.bmm(scaled, values.transpose(1, 2)).mul_(kept)
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_queries = torch.bmm(of_scores, keys).mul_(ctx.scale)
        of_keys = torch.bmm(of_scores.transpose(1, 2), queries).mul_(ctx.scale)
        found = zip((of_queries, of_keys, of_values), ctx.shapes, strict=True)
        return *(part.view(shape) for part, shape in found), None, None, None
