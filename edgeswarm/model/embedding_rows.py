"""Lookups in a table of which a micro-batch meets few rows: a gradient of those rows alone.

PyTorch gives the gradient of `embedding` as large as the table, nearly all of it zeros, and adds it to the sum over
micro-batches: two walks over the table for each micro-batch, however small, and as much memory once more.

    tokens          7  2  7            gradient            rows 2 and 7, each the sum of its tokens' in their order
    sum so far    | 0 | 1 | 2 | ... | 7 | ... |
                            + 2         + 7               the same bits: what else is added is zero
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

_DENSE_BACKWARD = torch.ops.aten.embedding_dense_backward
_NO_PADDING = -1


def embed(
    table: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = _NO_PADDING,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """What `aten.embedding` gives. To the dense `.grad` of a table that is a parameter, the gradient is added row by row."""
    is_sum = table.is_leaf and table.grad is not None and table.grad.layout is torch.strided
    is_large = table.shape[0] > indices.numel()
    if is_sum and is_large and table.device.type == "cpu" and not scale_grad_by_freq and not sparse:
        found: torch.Tensor = _OfRows.apply(table, indices, padding_idx)  # type: ignore[no-untyped-call]
        return found
    result: torch.Tensor = torch.ops.aten.embedding(table, indices, padding_idx, scale_grad_by_freq, sparse)
    return result


class _OfRows(torch.autograd.Function):
    """Its gradient is sparse, and coalesced: adding it to a dense sum is one addition for each number of a row."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, indices: torch.Tensor, padding_idx: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.table_shape, ctx.padding_idx = table.shape, padding_idx
        found: torch.Tensor = torch.ops.aten.embedding(table, indices, padding_idx)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        rows, places = torch.unique(indices, return_inverse=True)
        # Row `padding_idx` is never trained; where no token is its, no place is.
        padding = next(iter((rows == ctx.padding_idx).nonzero().flatten().tolist()), _NO_PADDING)
        of_rows = _DENSE_BACKWARD(gradient, places, len(rows), padding, False)
        sparse = torch.sparse_coo_tensor(
            rows.unsqueeze(0), of_rows, ctx.table_shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None, None
