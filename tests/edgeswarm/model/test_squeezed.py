"""A squeeze takes away the same dimensions whatever the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from edgeswarm.model.export import export_model

from .pipeline import Pipeline, all_tensors, bounds


class Pooled(nn.Module):
    def __init__(self, squeeze: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 5, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = squeeze
        self.last = nn.Linear(5, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.squeeze(self.pool(self.convolution(images))))
        return scores


@pytest.mark.parametrize(
    "squeeze",
    [
        lambda pooled: pooled.squeeze(),
        lambda pooled: pooled.squeeze(3).squeeze(-1),
        lambda pooled: pooled.squeeze((2, 3)),
        lambda pooled: torch.squeeze(pooled).squeeze(0),  # of a batch that is no dimension of one
        lambda pooled: pooled.squeeze(dim=1).flatten(1).squeeze(),
        lambda pooled: (2 * pooled).squeeze_() / 2,
    ],
)
@pytest.mark.parametrize("batch", [1, 4])
def test_of_one_sample_it_leaves_the_batch(squeeze: Callable[[torch.Tensor], torch.Tensor], batch: int) -> None:
    torch.manual_seed(0)
    model = Pooled(squeeze)
    exported = export_model(model, (torch.rand(4, 2, 6, 6),))
    images = torch.rand(batch, 2, 6, 6)
    pipeline = Pipeline(exported, all_tensors(model, exported), bounds(exported.layer_graph, 2))
    found = pipeline.forward((images,), batch=batch)
    expected = model.last(model.pool(model.convolution(images)).flatten(1))
    assert found.shape == (batch, 3)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
