"""The evaluation graph is cut where the training graph is, and computes what the model computes in evaluation mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.evaluation import EvaluationGraph, export_evaluation
from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.layer_graph import LayerGraph
from tests.zoo import ZOO

from .exactness import as_written, build, logits_of
from .pipeline import Pipeline, all_tensors, bounds

# Those that take as long as all others together are in `make soak`, and one that is like another.
IN_SOAK = ("swin", "efficientnet_b1", "mobilenet_v2")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in IN_SOAK)) for name in ZOO])
def test_each_layer_uses_what_its_training_layer_holds_and_computes_the_same_bits(name: str) -> None:
    size = ZOO[name].small
    model, exported = build(size)
    args, kwargs = size.batch(4)
    with as_written():
        evaluation = export_evaluation(model, args, kwargs, training=exported.layer_graph)
    assert model.training
    assert foreign_tensors(evaluation.layer_graph, exported.layer_graph) == []
    assert evaluation.layer_graph.least_batch(0, len(exported.layer_graph.layers)) == 1
    plain = copy.deepcopy(model).eval()
    for stages in (1, 3, len(exported.layer_graph.layers)):
        assert torch.equal(*outputs_of(plain, evaluation, all_tensors(model, exported), name, stages=stages))


def foreign_tensors(graph: LayerGraph, training: LayerGraph) -> list[str]:
    """Parameters and buffers of evaluation layers that the training layer of that number doesn't hold."""
    return [
        name
        for layer, known in zip(graph.layers, training.layers, strict=True)
        for name in (*layer.parameters, *layer.buffers)
        if name not in (*known.parameters, *known.buffers)
    ]


def outputs_of(
    plain: nn.Module, evaluation: EvaluationGraph, tensors: dict[str, Tensor], name: str, *, stages: int
) -> tuple[Tensor, Tensor]:
    args, kwargs = ZOO[name].small.batch(5)
    graph = evaluation.layer_graph
    pipeline = Pipeline(
        ExportedModel(graph, evaluation.constants), {**tensors, **evaluation.constants}, bounds(graph, stages)
    )
    with torch.no_grad():
        return logits_of(pipeline.forward(args, kwargs, batch=5)), logits_of(plain(*args, **kwargs))


class Calibrated(nn.Module):
    """In evaluation it scales by a buffer that training never reads, and adds a tensor made in forward."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.tensor([2.0, 3.0, 5.0]))

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(values)))
        return out if self.training else out * self.scale + torch.tensor([1.0, 2.0, 4.0])


def test_what_only_evaluation_uses_becomes_a_constant_of_its_own() -> None:
    model = Calibrated().train()
    batch = torch.randn(4, 4)
    exported = export_model(model, (batch,))
    evaluation = export_evaluation(model, (batch,), {}, training=exported.layer_graph)
    assert "scale" in exported.layer_graph.unused
    assert torch.equal(evaluation.constants["evaluation.scale"], torch.tensor([2.0, 3.0, 5.0]))
    assert len(evaluation.constants) == 2
    graph = evaluation.layer_graph
    tensors = {**all_tensors(model, exported), **evaluation.constants}
    pipeline = Pipeline(ExportedModel(graph, evaluation.constants), tensors, bounds(graph, 2))
    with torch.no_grad():
        assert torch.equal(pipeline.forward((batch,), batch=4), model.eval()(batch))


class TiedBytes(nn.Module):
    """A model of texts byte by byte: what it gives for each place, log-probabilities in another order, is less than what goes
    into its last product, whose weight is that of the embedding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(6, 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, texts: Tensor) -> Tensor:
        hidden = self.bytes(texts.view(texts.shape[0], -1))
        hidden = functional.dropout(torch.relu(self.second(torch.relu(self.first(hidden)))), training=self.training)
        return functional.log_softmax(functional.linear(hidden, self.bytes.weight), -1).transpose(1, 2)


class Siamese(nn.Module):
    """Both inputs go through the same two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def one(self, values: Tensor) -> Tensor:
        hidden: Tensor = torch.relu(self.second(functional.dropout(torch.relu(self.first(values)), 0.1, self.training)))
        return hidden

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        out: Tensor = self.third(self.one(one) - self.one(other))
        return out


@pytest.mark.parametrize(
    ("model", "batch"),
    [(TiedBytes(), (torch.randint(0, 6, (4, 5)),)), (Siamese(), (torch.rand(4, 4), torch.rand(4, 4)))],
    ids=["tied", "siamese"],
)
def test_weights_that_several_layers_use_stay_in_those(model: nn.Module, batch: tuple[Tensor, ...]) -> None:
    exported = export_model(model.train(), batch)
    evaluation = export_evaluation(model, batch, {}, training=exported.layer_graph)
    assert foreign_tensors(evaluation.layer_graph, exported.layer_graph) == []
    graph = evaluation.layer_graph
    count = len(graph.layers)
    assert count > 2
    tensors = {**all_tensors(model, exported), **evaluation.constants}
    pipeline = Pipeline(ExportedModel(graph, evaluation.constants), tensors, bounds(graph, count))
    with torch.no_grad():
        assert torch.equal(pipeline.forward(batch, batch=4), copy.deepcopy(model).eval()(*batch))


class TurnedAround(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        order = (self.first, self.second, self.third) if self.training else (self.third, self.second, self.first)
        for module in order:
            values = torch.relu(module(values))
        return values


def test_modules_used_in_another_order_are_named() -> None:
    model = TurnedAround().train()
    batch = torch.randn(4, 4)
    training = export_model(model, (batch,)).layer_graph
    with pytest.raises(EdgeswarmError, match="between first and second") as caught:
        export_evaluation(model, (batch,), {}, training=training)
    assert caught.value.code is ErrorCode.EXPORT_FAILED
    assert model.training
