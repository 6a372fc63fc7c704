from __future__ import annotations

import pytest
import torch

from edgeswarm.model.probe import random_like


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3),
        torch.zeros(0, 4),
        torch.zeros(1 << 14),
        torch.zeros(5, 7, 1001, dtype=torch.float64),
        torch.zeros(4, 8, 33, 33).contiguous(memory_format=torch.channels_last),
        torch.zeros(6, 20000).T,
        torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True) * 1,
    ],
)
def test_random_numbers_fill_a_tensor_as_it_lies_in_memory(tensor: torch.Tensor) -> None:
    made = random_like(tensor)
    assert (made.shape, made.dtype, made.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
    assert not made.requires_grad
    assert torch.isfinite(made).all()
    if made.numel() > 1000:
        assert made.float().mean().item() == pytest.approx(0.0, abs=0.05)
        assert made.float().std().item() == pytest.approx(1.0, abs=0.05)


def test_a_view_with_gaps_is_followed_by_a_tensor_without() -> None:
    made = random_like(torch.zeros(100, 100)[:, ::2])
    assert made.is_contiguous()
    assert (made != 0).all()
