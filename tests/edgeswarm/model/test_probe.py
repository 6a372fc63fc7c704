from __future__ import annotations

import pytest
import torch
from torch import nn

from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.probe import random_inputs, random_like, random_tensors
from edgeswarm.model.stage import StageModule


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


class LastOfEach(nn.Module):
    """What stands at the end of texts of unequal lengths; the lengths go on to the second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(self.words(tokens)))
        places = (lengths - 1).view(-1, 1, 1).expand(-1, 1, 16)
        scores: torch.Tensor = self.second(hidden.gather(1, places).flatten(1))
        return scores


def test_whole_numbers_that_are_never_zero_are_made_up_as_the_smallest() -> None:
    tokens, lengths = torch.randint(0, 50, (4, 6)), torch.tensor([3, 6, 2, 4])
    assert (LastOfEach()(tokens, lengths)).shape == (4, 3)
    tokens[0, 0] = 0
    graph = export_model(LastOfEach(), (tokens, lengths)).layer_graph
    assert LayerGraph.from_json(graph.to_json()) == graph
    whole = graph.stage(0, len(graph.layers))
    made = random_inputs(whole, 5, seed=0)
    assert [set(tensor.flatten().tolist()) for tensor in made] == [{0}, {2}]
    for layer in graph.layers:
        stage = graph.stage(layer.index, layer.index + 1)
        module = StageModule(stage, random_tensors(stage, seed=0))
        module.forward(5, random_inputs(stage, 5, seed=0), draw=None)
    of_lengths = [value.least for cut in graph.cuts for value in cut if value.name == graph.cuts[0][1].name]
    assert len(of_lengths) > 1
    assert set(of_lengths) == {2}
