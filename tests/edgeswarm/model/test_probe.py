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


def run_with_made_up_inputs(graph: LayerGraph) -> None:
    """The whole model, and each of its layers alone."""
    layers = range(len(graph.layers))
    for first, end in [(0, len(layers)), *((index, index + 1) for index in layers)]:
        stage = graph.stage(first, end)
        module = StageModule(stage, random_tensors(stage, seed=0))
        module.forward(5, random_inputs(stage, 5, seed=0), draw=None)


def test_whole_numbers_are_made_up_as_the_largest_of_some_samples() -> None:
    tokens, lengths = torch.randint(0, 49, (4, 6)), torch.tensor([3, 6, 2, 4])
    assert (LastOfEach()(tokens, lengths)).shape == (4, 3)
    tokens[0, 0], tokens[0, 1] = 0, 49
    graph = export_model(LastOfEach(), (tokens, lengths)).layer_graph
    assert LayerGraph.from_json(graph.to_json()) == graph
    whole = graph.stage(0, len(graph.layers))
    made = random_inputs(whole, 5, seed=0)
    assert [set(tensor.flatten().tolist()) for tensor in made] == [{49}, {6}]
    run_with_made_up_inputs(graph)
    of_lengths = [value.filler for cut in graph.cuts for value in cut if value.name == graph.cuts[0][1].name]
    assert len(of_lengths) > 1
    assert set(of_lengths) == {6}


class LastWord(LastOfEach):
    """Lengths follow from the words, 0 being none, or from what says which are none."""

    def forward(self, tokens: torch.Tensor, is_none: torch.Tensor | None = None) -> torch.Tensor:
        there = tokens != 0 if is_none is None else ~is_none
        return super().forward(tokens, there.sum(1))


@pytest.mark.parametrize("has_mask", [False, True])
def test_what_follows_from_the_inputs_is_made_up_as_some_samples_have_it(has_mask: bool) -> None:
    tokens = torch.tensor([[7, 8, 9, 0, 0], [3, 0, 0, 0, 0], [1, 2, 3, 4, 0], [6, 7, 8, 9, 0]])
    given = (tokens, tokens == 0) if has_mask else (tokens,)
    before = tokens.clone()
    graph = export_model(LastWord(), given).layer_graph
    assert torch.equal(tokens, before)
    run_with_made_up_inputs(graph)
    crossing = [value.filler for cut in graph.cuts[1:-1] for value in cut if value.dtype == "int64"]
    assert crossing
    assert set(crossing) <= {3, 4}, "a length, or a place"


class Categories(nn.Module):
    """A table's rows: some numbers of it are categories."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 6)
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        numbers: torch.Tensor = self.second(torch.relu(self.first(rows) + self.kinds(rows[:, :3].long()).sum(1)))
        return numbers


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(torch.bernoulli(images))))
        return out


@pytest.mark.parametrize("model", [Categories, Noisy])
def test_floats_are_made_up_as_indices_and_probabilities_may_be(model: type[nn.Module]) -> None:
    run_with_made_up_inputs(export_model(model(), (torch.rand(4, 5),)).layer_graph)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor, left_out: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(rows.masked_fill(left_out, 0.0))))
        return out


@pytest.mark.parametrize(("often", "filler"), [(False, 0), (True, 1)])
def test_truth_values_are_made_up_as_they_are_most_often(often: bool, filler: int) -> None:
    mask = torch.full((4, 5), often)
    mask[0, :2] = not often
    graph = export_model(Masked(), (torch.rand(4, 5), mask)).layer_graph
    assert [value.filler for value in graph.cuts[0] if value.dtype == "bool"] == [filler]
    run_with_made_up_inputs(graph)
