"""Gradients of weights that wait: the same as those of a backward in one, and nothing of them before their turn."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.later_weights import LaterWeights, free_results
from edgeswarm.model.stage import StageModule

from .pipeline import Pipeline, all_tensors, bounds


class Blocks(nn.Module):
    """A convolution of each kind that is computed in its own way, and products of matrices with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.norm_of_depthwise = nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.BatchNorm2d(16)
        self.grouped, self.norm_of_grouped = nn.Conv2d(16, 32, 3, padding="same", groups=4), nn.BatchNorm2d(32)
        self.even = nn.Conv2d(32, 32, 2, padding="same")
        self.down = nn.Conv2d(32, 64, 1, stride=2)
        self.small = nn.Conv2d(64, 64, 3, padding=1)
        self.narrow = nn.Conv2d(64, 48, 1)
        self.wide = nn.Linear(48, 64, bias=False)
        self.head, self.norm_of_head = nn.Linear(64, 64), nn.LayerNorm(64)
        self.last = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(image)))
        x = torch.relu(self.norm_of_depthwise(self.depthwise(x)))
        x = x + self.norm_of_grouped(self.grouped(x)).unflatten(1, (2, 16)).sum(1)
        x = functional.silu(self.even(torch.cat([x, x], 1)))
        x = functional.hardswish(self.small(functional.gelu(self.down(x))))
        x = functional.silu(self.narrow(x)).mean((2, 3))
        x = self.norm_of_head(self.head(functional.gelu(self.wide(x))))
        found: Tensor = self.last(torch.tanh(x))
        return found


class Shared(nn.Module):
    """One weight in two places, one that is frozen, one that is computed from, and one that nobody else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.weight.requires_grad_(False)
        self.scaled = nn.Parameter(torch.randn(8, 8))
        self.once = nn.Linear(8, 8)

    def forward(self, values: Tensor) -> Tensor:
        x = functional.gelu(self.twice(functional.gelu(self.twice(values))))
        x = functional.gelu(functional.linear(functional.gelu(self.frozen(x)), 2 * self.scaled))
        found: Tensor = functional.gelu(self.once(x))
        return found


def gradients_of(
    model: nn.Module, args: Tensor, *, exported: ExportedModel, stages: int, weights_apart: bool, fast_layout: bool
) -> tuple[dict[str, Tensor], int]:
    tensors = all_tensors(model, exported)
    pipeline = Pipeline(
        exported,
        tensors,
        bounds(exported.layer_graph, stages),
        weights_apart=weights_apart,
        fast_layout=fast_layout,
    )
    for _ in range(2):  # sums over micro-batches
        output = pipeline.forward((args,), batch=len(args))
        (output**2).sum().backward()
        pipeline.backward()
    return pipeline.gradients(), pipeline.waited


@functools.cache
def exported_blocks() -> ExportedModel:
    return export_model(Blocks(), (torch.zeros(5, 3, 12, 12),))


@pytest.mark.parametrize("fast_layout", [False, True])
@pytest.mark.parametrize("stages", [1, 3])
def test_gradients_are_the_same_and_all_products_wait(fast_layout: bool, stages: int) -> None:
    torch.manual_seed(0)
    model, image = Blocks(), torch.randn(5, 3, 12, 12)
    computed = functools.partial(
        gradients_of, model, image, exported=exported_blocks(), stages=stages, fast_layout=fast_layout
    )
    at_once, none = computed(weights_apart=False)
    later, waited = computed(weights_apart=True)
    assert none == 0
    # But for `even`, whose padding differs from edge to edge, and for `last`, whose result nobody keeps; between stages some
    # results are others' inputs.
    assert waited == 2 * 8 if stages == 1 else waited >= 2 * 5
    assert at_once.keys() == later.keys() == dict(model.named_parameters()).keys()
    for name, gradient in at_once.items():
        torch.testing.assert_close(later[name], gradient, rtol=2e-5, atol=2e-5)


def test_what_others_read_too_doesn_t_wait() -> None:
    torch.manual_seed(0)
    model, values = Shared(), torch.randn(6, 8)
    exported = export_model(model, (values,))
    computed = functools.partial(gradients_of, model, values, exported=exported, stages=1, fast_layout=False)
    at_once, _ = computed(weights_apart=False)
    later, waited = computed(weights_apart=True)
    assert waited == 2 * 2  # `once`, and the bias of `frozen`
    assert at_once.keys() == later.keys()
    for name, gradient in at_once.items():
        torch.testing.assert_close(later[name], gradient)


class Readers(nn.Module):
    """Products whose results are read by one that keeps them, by one that writes over them, by two, and outside the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.normed, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.written_over, self.twice = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.kept = nn.Linear(4, 4)
        self.returned = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.written_over(self.norm(self.normed(image))))
        x = self.twice(x)
        x = (x + functional.silu(x)).mean((2, 3))
        found: Tensor = self.returned(functional.gelu(self.kept(x)))
        return found


def test_results_are_written_over_where_nobody_needs_them_any_more() -> None:
    graph = export_model(Readers(), (torch.zeros(2, 3, 5, 5),)).layer_graph
    nodes = graph.stage(0, len(graph.layers)).nodes
    found = free_results(nodes, kept=())
    products = {node.tensors[0].rpartition(".")[0]: node.name for node in nodes if node.tensors and node.name in found}
    assert products.keys() == {"normed", "kept"}
    assert not free_results(nodes, kept=found)


def test_a_gradient_that_waits_lies_where_the_result_did() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    graph = export_model(model, (torch.zeros(2, 3, 8, 8),)).layer_graph
    module = StageModule(
        graph.stage(0, len(graph.layers)), dict(model.named_parameters()) | dict(model.named_buffers())
    )
    later = LaterWeights()
    results: list[Tensor] = []

    def convolve(*args: Any, **kwargs: Any) -> Tensor:
        results.append(conv2d(*args, **kwargs).detach())
        return results[0]

    conv2d = functional.conv2d
    with mock.patch.object(functional, "conv2d", convolve):
        (output,) = module.forward(2, [torch.randn(2, 3, 8, 8)], draw=None, later=later)
    before = results[0].clone()
    torch.autograd.backward([(output**3).sum()])
    assert len(later) == 1
    assert not torch.equal(results[0], before)


def test_nothing_is_added_before_its_turn_and_nothing_is_held_behind_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.SiLU())
    graph = export_model(model, (torch.zeros(2, 3, 8, 8),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    image, later = torch.randn(2, 3, 8, 8, requires_grad=True), LaterWeights()
    (output,) = module.forward(2, [image], draw=None, later=later)
    torch.autograd.backward([output.sum()])
    assert image.grad is not None
    assert len(later) == 2
    assert all(parameter.grad is None for parameter in module.parameters.values())
    order = []
    for edges, gradients in later.take():
        order.append([tuple(gradient.shape) for gradient in gradients])
        torch.autograd.backward(edges, gradients)
    assert order == [[(8, 8, 3, 3), (8,)], [(8, 3, 3, 3), (8,)]]
    assert all(parameter.grad is not None for parameter in module.parameters.values())
    assert len(later) == 0


def test_what_is_given_up_between_backward_and_weights_is_freed() -> None:
    """By a halt: what waits must not hold the graph, which holds what waits."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU())
    graph = export_model(model, (torch.zeros(4, 8),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    for done in range(4):
        values, later = torch.randn(4, 8, requires_grad=True), LaterWeights()
        (output,) = module.forward(4, [values], draw=None, later=later)
        torch.autograd.backward([output.sum()])
        taken = later.take()
        for _ in range(done):
            next(taken)
        taken.close()
        assert len(later) == 3 - done
        alive = weakref.ref(later)
        del later, taken, output
        gc.collect()
        assert alive() is None
