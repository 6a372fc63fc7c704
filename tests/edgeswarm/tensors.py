"""Tensors of every kind that the formats have, for hypothesis."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from edgeswarm.wire.tensor_file import DTYPES

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of any bits, nan among them, sometimes not contiguous."""
    dtype = dtype or draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    shape = draw(SHAPES) if shape is None else shape
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    tensor = bits.view(dtype).squeeze(-1)
    if tensor.dim() > 1 and draw(st.booleans()):
        return tensor.mT.contiguous().mT
    return tensor


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal in type, shape and every bit."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(
            one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8)
        )
    )
