"""The chains of blocks that a pipeline of PyTorch's own is cut from compute what the models compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.peers.blocks import blocks_of, samples, whole_model


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b1", "resnet_50", "bert_small"])
def test_blocks_make_the_whole_model(name: str) -> None:
    pytest.importorskip("transformers")
    inputs, targets = samples(name, 3)
    assert len(inputs) == len(targets) == 3
    whole, chain = whole_model(name).eval(), nn.Sequential(*blocks_of(name)).eval()
    with torch.no_grad():
        torch.testing.assert_close(chain(inputs), whole(inputs), rtol=1e-4, atol=1e-5)
    count = sum(parameter.numel() for parameter in whole.parameters())
    assert sum(parameter.numel() for parameter in chain.parameters()) == count
