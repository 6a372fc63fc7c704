"""A pipeline in one process: stages chained as workers chain them, to compare with the plain model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgeswarm.model.batch_norm import BatchNormMerger
from edgeswarm.model.draws import DrawKey
from edgeswarm.model.export import ExportedModel
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.model.structure import flatten, unflatten


def bounds(graph: LayerGraph, stages: int) -> list[tuple[int, int]]:
    """About equal numbers of layers for so many stages."""
    ends = [round(index * len(graph.layers) / stages) for index in range(stages + 1)]
    return list(itertools.pairwise(ends))


def all_tensors(model: nn.Module, exported: ExportedModel) -> dict[str, Tensor]:
    """The model's tensors as copies, by canonical name."""
    state: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers()), **exported.constants}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


class Pipeline:
    """Stages that went through JSON, over copies of the model's tensors.

    Values go over each cut as contiguous leaves without history, as they come from a network. weights_apart: gradients of
    weights that can wait are computed once all backwards are through. fast_layout: see StageModule.
    """

    def __init__(
        self,
        exported: ExportedModel,
        tensors: Mapping[str, Tensor],
        stages: Sequence[tuple[int, int]],
        *,
        weights_apart: bool = False,
        fast_layout: bool = False,
    ) -> None:
        self.graph = exported.layer_graph
        self.modules = [
            StageModule(
                StageGraph.from_json(self.graph.stage(first, end).to_json()),
                {name: tensor.clone() for name, tensor in tensors.items()},
                fast_layout=fast_layout,
            )
            for first, end in stages
        ]
        self.mergers = [BatchNormMerger(module.graph.batch_norms, module.buffers) for module in self.modules]
        self._passes: list[tuple[list[Tensor], tuple[Tensor, ...]]] = []
        self._later = [LaterWeights() if weights_apart else None for _ in stages]
        self.waited = 0  # operations whose weights' gradients waited

    def forward(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        batch: int,
        draw: DrawKey | None = None,
        own_loss: bool = False,
    ) -> Any:
        """What the model returns, made of leaves; call `backward` after giving them gradients.

        own_loss: the last stage's own outputs, as a worker hands them to the loss; its backward goes through that stage.
        """
        self._passes = []
        live: list[Tensor] = flatten(self.graph.input_structure, (args, kwargs or {}))
        for module, merger, later in zip(self.modules, self.mergers, self._later, strict=True):
            leaves = _leaves(live, module.graph.inputs)
            outputs = module.forward(batch, leaves, draw=draw, later=later)
            for value, output in zip(module.graph.outputs, outputs, strict=True):
                assert not torch.is_grad_enabled() or value.requires_grad == output.requires_grad, value
                if value.batch_dim >= 0:
                    assert tuple(output.shape) == value.with_batch(batch)
            merger.add(module.take_batch_statistics())
            self._passes.append((leaves, outputs))
            live = list(outputs)
        self._own_loss = own_loss
        self.outputs = live if own_loss else _leaves(live, self.modules[-1].graph.outputs)
        return unflatten(self.graph.output_structure, self.outputs)

    def backward(self) -> None:
        passes = list(self._passes)
        if self._own_loss:
            leaves, _ = passes.pop()
        else:
            leaves = self.outputs
        gradients = [leaf.grad for leaf in leaves]
        for leaves, outputs in reversed(passes):
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if output.requires_grad and gradient is not None
            ]
            if pairs:
                torch.autograd.backward([pair[0] for pair in pairs], [pair[1] for pair in pairs])
            gradients = [leaf.grad for leaf in leaves]
        for later in self._later:
            if later is not None:
                self.waited += len(later)
                for edges, found in later.take():
                    torch.autograd.backward(edges, found)
        for merger in self.mergers:
            merger.apply(merger.to_vector())

    def gradients(self) -> dict[str, Tensor]:
        """By name; those of tied weights are summed over the stages that hold them."""
        found: dict[str, Tensor] = {}
        for module in reversed(self.modules):
            for name, parameter in module.named_parameters_in_order():
                if parameter.grad is not None:
                    found[name] = found[name] + parameter.grad if name in found else parameter.grad
        return found

    def buffers(self) -> dict[str, Tensor]:
        return {name: tensor for module in self.modules for name, tensor in module.buffers.items()}


def _leaves(tensors: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor]:
    return [
        tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)
        for tensor, value in zip(tensors, values, strict=True)
    ]
