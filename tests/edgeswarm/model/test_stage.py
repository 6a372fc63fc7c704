"""A stage's functions, whatever the model's own names are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgeswarm.model.export import export_model

from .pipeline import Pipeline, all_tensors, bounds


class _NamedAsOurs(nn.Module):
    """Its arguments have names that a stage's function has for the number of samples, its values and its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, batch: Tensor, value_0: Tensor, tensor_0: Tensor) -> Tensor:
        hidden = torch.relu(self.first(batch) + value_0)
        result: Tensor = self.last(hidden) * tensor_0
        return result


def test_inputs_may_have_any_names_and_are_known_behind_cuts() -> None:
    torch.manual_seed(0)
    model = _NamedAsOurs()
    inputs = tuple(torch.randn(3, 6) for _ in range(3))
    exported = export_model(model, inputs)
    graph = exported.layer_graph
    assert [(value.name, value.is_input) for value in graph.cuts[0]] == [
        ("batch", True),
        ("value_0", True),
        ("tensor_0", True),
    ]
    own = [value.is_input for value in graph.cuts[1]]
    assert (own.count(True), own.count(False)) == (1, 1), (
        "what the first layer makes, and the input that the last one reads"
    )
    for stages in (1, len(graph.layers)):
        pipeline = Pipeline(exported, all_tensors(model, exported), bounds(graph, stages))
        assert torch.equal(pipeline.forward(inputs, batch=3), model(*inputs))


class _Einsum(nn.Module):
    """What an einsum of two makes is memory of its own, into which the model may write."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, values: Tensor) -> Tensor:
        found = torch.einsum("bd,dk->bk", values, self.weight)
        found += self.bias
        typed = (found + 1.0).type_as(self.bias)
        typed.mul_(2.0)
        return typed


def test_what_is_written_to_may_have_been_computed_from_weights() -> None:
    torch.manual_seed(0)
    model, values = _Einsum(), torch.randn(3, 6)
    exported = export_model(model, (values,))
    pipeline = Pipeline(exported, all_tensors(model, exported), bounds(exported.layer_graph, 1))
    assert torch.equal(pipeline.forward((values,), batch=3), model(values))
