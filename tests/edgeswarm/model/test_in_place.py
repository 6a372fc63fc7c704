"""Activations in place: the bits of a plain model's, in less memory, and only where nobody sees the difference."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.model import memory_layout
from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.in_place import in_place_forms
from edgeswarm.model.operators import packet_of
from edgeswarm.model.stage import StageModule

BATCH, CHANNELS, PIXELS = 4, 6, 8
IMAGE_BYTES = CHANNELS * PIXELS * PIXELS * 4
IMAGES = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution and a batch norm, what is done with their image, and another convolution."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.last = nn.Conv2d(CHANNELS, 2, 3, padding=1)
        self._between = between

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.last(self._between(self.norm(self.first(images))))
        return result


def exported(model: nn.Module) -> ExportedModel:
    return export_model(model, (IMAGES,))


def in_place_of(model: ExportedModel) -> list[str]:
    """Of the whole model's operations, those that are done in place."""
    graph = model.layer_graph
    nodes = graph.stage(0, len(graph.layers)).nodes
    forms = in_place_forms(nodes, kept=frozenset(value.name for value in graph.cuts[-1]))
    return sorted(packet_of(node.op) for node in nodes if node.name in forms)


def trained(model: Callable[[Tensor], Any], parameters: list[Tensor]) -> list[Tensor]:
    """The output and the gradients."""
    images = IMAGES.clone().requires_grad_()
    output = model(images)
    # Each value has a gradient of its own.
    torch.autograd.backward([(output * torch.arange(output.numel()).view_as(output)).sum()])
    return [output, *(gradient for tensor in (images, *parameters) if (gradient := tensor.grad) is not None)]


def assert_bits_of_the_model(model: nn.Module, found: ExportedModel) -> None:
    graph = found.layer_graph.stage(0, len(found.layer_graph.layers))
    module = StageModule(graph, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    mine = trained(lambda images: module.forward(BATCH, [images], draw=None)[0], list(module.parameters.values()))
    plain = copy.deepcopy(model)
    theirs = trained(plain, list(plain.parameters()))
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other)


def saved_bytes_of(found: ExportedModel) -> int:
    return sum(layer.saved_bytes for layer in found.layer_graph.layers)


@functools.cache
def saved_with_another() -> int:
    """By an activation that keeps its argument and its result."""
    return saved_bytes_of(exported(Net(functional.silu)))


@pytest.mark.parametrize(
    ("between", "packet"),
    [
        (functional.relu6, "relu6"),
        (nn.Hardtanh(-0.5, 0.5), "hardtanh"),
        (nn.LeakyReLU(0.2), "leaky_relu"),
        (nn.LeakyReLU(0.0), "leaky_relu"),
        (functional.relu, "relu"),
    ],
    ids=["relu6", "hardtanh", "leaky", "leaky-of-nothing", "relu"],
)
def test_an_activation_behind_a_norm_writes_over_what_the_norm_made(
    between: Callable[[Tensor], Tensor], packet: str
) -> None:
    model = Net(between)
    found = exported(model)
    assert in_place_of(found) == [packet]
    assert_bits_of_the_model(model, found)
    kept_beside = saved_with_another() - saved_bytes_of(found)
    assert kept_beside == IMAGE_BYTES, "what the norm made isn't kept beside the activation's result"


def read_twice(image: Tensor) -> Tensor:
    return functional.relu6(image) + image


def changed_later(image: Tensor) -> Tensor:
    found = functional.relu6(image)
    found.mul_(2.0)
    return found


def turned_over(image: Tensor) -> Tensor:
    return functional.leaky_relu(image, -0.5)


def of_a_view(image: Tensor) -> Tensor:
    return functional.relu6(image.transpose(2, 3))


def behind_another(image: Tensor) -> Tensor:
    return functional.relu6(torch.sigmoid(image))  # whose gradient asks for its result


@pytest.mark.parametrize("between", [read_twice, changed_later, turned_over, of_a_view, behind_another])
def test_it_does_not_where_somebody_else_needs_that(between: Callable[[Tensor], Tensor]) -> None:
    model = Net(between)
    found = exported(model)
    assert not in_place_of(found)
    assert_bits_of_the_model(model, found)


def test_a_loss_may_write_into_what_the_model_returns() -> None:
    """As into the result of `relu6`, whose gradient asks for its argument."""
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU6(), nn.Flatten())
    found = exported(model)
    graph = found.layer_graph.stage(0, len(found.layer_graph.layers))
    module = StageModule(graph, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    (output,) = module.forward(BATCH, [IMAGES], draw=None)
    output.mul_(2.0).sum().backward()  # type: ignore[no-untyped-call]
    model(IMAGES).mul_(2.0).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(module.parameters[name].grad, parameter.grad), name  # type: ignore[arg-type]


def residual(image: Tensor) -> Tensor:
    return functional.relu6(image + functional.hardtanh(image, -0.5, 0.5))


def test_a_sum_is_written_over_and_what_it_adds_is_not() -> None:
    model = Net(residual)
    found = exported(model)
    assert len(in_place_of(found)) == 1
    assert_bits_of_the_model(model, found)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2)], ids=["relu", "relu6", "leaky"])
def test_what_is_written_over_may_be_a_view_as_of_one_pixel(activation: nn.Module) -> None:
    """Channels last, a convolution of one pixel is a matrix product, and a depthwise one a function of our own."""
    model = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 1), activation, nn.Conv2d(8, 8, 3, padding=1, groups=8), activation
    )
    found = exported(model)
    assert len(in_place_of(found)) == 2
    graph = found.layer_graph.stage(0, len(found.layer_graph.layers))
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with mock.patch.object(memory_layout, "_is_faster_on", return_value=True):
        module = StageModule(graph, tensors, fast_layout=True)

    def run(images: Tensor) -> Tensor:
        return module.forward(BATCH, module.arranged([images]), draw=None)[0]

    mine, theirs = trained(run, list(module.parameters.values())), trained(model, list(model.parameters()))
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


class CutBetween(nn.Module):
    """An activation at the head of a layer: what the layer before it made may be another device's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS))
        self.second = nn.Sequential(nn.ReLU6(), nn.Conv2d(CHANNELS, 2, 3))

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(images))
        return result


def test_stages_of_one_layer_each_compute_what_the_whole_does() -> None:
    model = CutBetween()
    found = exported(model)
    assert_bits_of_the_model(model, found)
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    values: list[Tensor] = [IMAGES]
    for index in range(len(found.layer_graph.layers)):
        stage = StageModule(found.layer_graph.stage(index, index + 1), tensors)
        values = list(stage.forward(BATCH, values, draw=None))
    assert torch.equal(values[0], copy.deepcopy(model)(IMAGES))
