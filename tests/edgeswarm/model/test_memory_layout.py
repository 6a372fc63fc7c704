"""Images channels last: the same results, whatever a model does with them; and where it isn't done."""

from __future__ import annotations

import functools
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from edgeswarm.model import memory_layout
from edgeswarm.model.export import export_model
from edgeswarm.model.memory_layout import arranged, wants_channels_last
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph

CPU = torch.device("cpu")
IMAGES = (torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


@pytest.fixture(autouse=True)
def on_x86() -> object:
    with mock.patch.object(memory_layout, "_is_faster_on", lambda device: device.type == "cpu"):
        yield


class Net(nn.Module):
    """A convolution, what is done with its image, and a classifier."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], features: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.last = nn.Linear(features, 5)
        self._between = between

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self._between(self.norm(self.first(images))))
        return result


def viewed(image: torch.Tensor) -> torch.Tensor:
    return image.relu_().view(image.shape[0], -1)


def changed_behind_a_view(image: torch.Tensor) -> torch.Tensor:
    flat = image.view(image.shape[0], -1)
    flat.mul_(2.0)
    return image.sum((2, 3))


def changed_after_it_was_flattened(image: torch.Tensor) -> torch.Tensor:
    return functional.relu6(image.flatten(1), inplace=True)


def attention(image: torch.Tensor) -> torch.Tensor:
    tokens = image.flatten(2).transpose(1, 2)
    found = functional.scaled_dot_product_attention(tokens, tokens, tokens)
    return found.transpose(1, 2).reshape(image.shape).mean((2, 3))


def graph_of(
    between: Callable[[torch.Tensor], torch.Tensor], features: int
) -> tuple[StageGraph, dict[str, torch.Tensor]]:
    state = Net(between, features).state_dict()
    return exported(between, features), {name: tensor.detach().clone() for name, tensor in state.items()}


@functools.cache
def exported(between: Callable[[torch.Tensor], torch.Tensor], features: int) -> StageGraph:
    graph = export_model(Net(between, features), IMAGES).layer_graph
    return graph.stage(0, len(graph.layers))


def trained(
    graph: StageGraph, tensors: dict[str, torch.Tensor], *, fast_layout: bool
) -> tuple[StageModule, torch.Tensor, list[torch.Tensor]]:
    """The module, its output, and the gradients."""
    module = StageModule(graph, {name: tensor.clone() for name, tensor in tensors.items()}, fast_layout=fast_layout)
    images = [image.requires_grad_() for image in module.arranged([IMAGES[0].clone()])]
    (output,) = module.forward(4, images, draw=None)
    torch.autograd.backward([output.square().sum()])
    found = [*(parameter.grad for parameter in module.parameters.values()), images[0].grad]
    return module, output, [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize(
    ("between", "features"),
    [(viewed, 384), (changed_after_it_was_flattened, 384), (attention, 6)],
    ids=["viewed", "changed-behind-it", "attention"],
)
def test_the_results_are_the_same(between: Callable[[torch.Tensor], torch.Tensor], features: int) -> None:
    graph, tensors = graph_of(between, features)
    assert wants_channels_last(graph, CPU)
    _, wanted, wanted_gradients = trained(graph, tensors, fast_layout=False)
    module, output, gradients = trained(graph, tensors, fast_layout=True)
    torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)
    assert len(gradients) == len(wanted_gradients) == len(tuple(module.parameters)) + 1
    for gradient, other in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-3)


def test_weights_and_inputs_lie_as_the_kernels_want_them() -> None:
    graph, tensors = graph_of(viewed, 384)
    module, _, _ = trained(graph, tensors, fast_layout=True)
    weight = module.parameters["first.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert torch.equal(weight, tensors["first.weight"])
    plain, _, _ = trained(graph, tensors, fast_layout=False)
    assert plain.parameters["first.weight"].is_contiguous()
    assert plain.arranged(IMAGES)[0] is IMAGES[0]


def test_a_stage_in_the_models_own_layout_gets_all_in_it_from_one_with_another() -> None:
    graph, tensors = graph_of(viewed, 384)
    plain, fast = (StageModule(graph, tensors, fast_layout=fast) for fast in (False, True))
    lying_last = arranged(IMAGES[0])
    assert not lying_last.is_contiguous()
    for got in (plain.arranged([lying_last])[0], plain.arranged_gradient(lying_last)):
        assert got.is_contiguous()
        assert torch.equal(got, lying_last)
    assert fast.arranged([lying_last])[0] is lying_last
    assert fast.arranged_gradient(lying_last) is lying_last


def test_one_pixel_and_one_channel_are_arranged_too() -> None:
    """Any strides are right for these; kernels are chosen by them."""
    for shape in ((4, 6, 1, 1), (6, 1, 3, 3)):
        tensor = torch.zeros(shape)
        assert arranged(tensor).stride() == torch.zeros(shape).to(memory_format=torch.channels_last).stride()
        assert arranged(tensor).stride() != tensor.stride()
    for other in (torch.zeros(4, 6), torch.zeros(4, 6, 2, 2, dtype=torch.float64), torch.zeros(4, 6, 2, 2).long()):
        assert arranged(other) is other


def test_where_a_change_in_place_would_be_missed_nothing_is_arranged() -> None:
    graph, tensors = graph_of(changed_behind_a_view, 6)
    assert [node.op for node in graph.nodes][2:4] == ["aten.view.default", "aten.mul_.Tensor"]
    assert not wants_channels_last(graph, CPU)
    _, wanted, _ = trained(graph, tensors, fast_layout=False)
    _, output, _ = trained(graph, tensors, fast_layout=True)
    torch.testing.assert_close(output, wanted)


def test_what_has_no_convolution_and_what_runs_elsewhere_stays_as_it_is() -> None:
    plain = export_model(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), IMAGES).layer_graph
    assert not wants_channels_last(plain.stage(0, len(plain.layers)), CPU)
    graph, _ = graph_of(viewed, 384)
    assert not wants_channels_last(graph, torch.device("cuda"))
