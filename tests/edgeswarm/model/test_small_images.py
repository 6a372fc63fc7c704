"""Convolutions of small images: values and gradients are those of PyTorch, whatever kernel, stride and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from edgeswarm.model import memory_layout, small_images
from edgeswarm.model.export import export_model
from edgeswarm.model.small_images import convolve
from edgeswarm.model.stage import StageModule

Sizes = tuple[int, int]


def compared(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: tuple[Any, ...]) -> None:
    """Output, its layout, and the gradients of all three."""
    image = image.to(memory_format=torch.channels_last)
    weight = weight.to(memory_format=torch.channels_last)
    functions: tuple[Callable[..., torch.Tensor], ...] = (convolve, functional.conv2d)
    outcomes: list[list[torch.Tensor | None]] = []
    for function in functions:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (image, weight, bias) if tensor is not None]
        output = function(leaves[0], leaves[1], leaves[2] if bias is not None else None, *geometry)
        scale = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
        torch.autograd.backward([(output * scale).sum()])
        outcomes.append([output.detach(), *(leaf.grad for leaf in leaves)])
        assert output.is_contiguous(memory_format=torch.channels_last)
    for mine, theirs in zip(*outcomes, strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None)
@given(
    batch=st.integers(1, 4),
    channels=st.integers(1, 5),
    pixels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    place=st.tuples(pairs, st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_depthwise_convolutions_are_those_of_torch(
    batch: int, channels: int, pixels: Sizes, kernel: Sizes, place: tuple[Sizes, Sizes]
) -> None:
    stride, padding = place
    if any(have + 2 * pad < wants for have, pad, wants in zip(pixels, padding, kernel, strict=True)):
        return
    torch.manual_seed(0)
    image, weight = torch.randn(batch, channels, *pixels), torch.randn(channels, 1, *kernel)
    for bias in (torch.randn(channels), None):
        compared(image, weight, bias, (stride, padding, 1, channels))


@pytest.mark.parametrize(
    ("kernel", "padding"),
    [((1, 1), 0), ((1, 1), "same"), ((1, 1), "valid"), ((3, 3), 1), ((1, 5), (0, 2)), ((3, 3), 2), ((3, 1), 1)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_one_pixel_is_a_matrix_product(kernel: Sizes, padding: int | str | Sizes, bias: bool) -> None:
    torch.manual_seed(0)
    image, weight = torch.randn(6, 5, 1, 1), torch.randn(7, 5, *kernel)
    stride = [1] if isinstance(padding, str) else [2]
    compared(image, weight, torch.randn(7) if bias else None, (stride, padding))


@pytest.mark.filterwarnings("ignore:Using padding")  # of even kernels, which torch computes
@pytest.mark.parametrize("kernel", [(3, 3), (5, 3), (4, 2), (1, 5)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_paddings_in_words_mean_the_same(kernel: Sizes, padding: str) -> None:
    torch.manual_seed(0)
    pixels = (2, 2) if padding == "same" else (kernel[0], 6)
    compared(torch.randn(2, 4, *pixels), torch.randn(4, 1, *kernel), torch.randn(4), (1, padding, 1, 4))


def test_only_one_pixel_with_one_tap_is_computed_as_a_product() -> None:
    image, weight = torch.randn(2, 4, 1, 1), torch.randn(4, 4, 3, 3)
    with mock.patch.object(small_images, "_product", side_effect=AssertionError):
        compared(image, weight, None, (1, 2))  # 3 x 3 pixels come out
        compared(torch.randn(2, 4, 1, 2), weight, None, (1, 1))
        compared(image, torch.randn(4, 2, 3, 3), None, (1, 1, 1, 2))
        with pytest.raises(AssertionError):
            compared(image, weight, None, (1, 1))


def test_other_types_and_dilations_are_left_to_torch() -> None:
    with mock.patch.object(small_images, "_product", side_effect=AssertionError):
        image, weight = torch.randn(2, 4, 1, 1), torch.randn(4, 4, 3, 3)
        assert torch.equal(convolve(image, weight, None, 1, 2, 2), functional.conv2d(image, weight, None, 1, 2, 2))
        image, weight = image.double(), weight.double()
        assert torch.equal(convolve(image, weight, padding=1), functional.conv2d(image, weight, padding=1))


class Net(nn.Module):
    """Images of 4 x 4, 2 x 2 and 1 pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),
            nn.Conv2d(8, 12, 1),
            nn.Conv2d(12, 12, 5, stride=2, padding=2, groups=12),
            nn.Conv2d(12, 6, 3, stride=2, padding=1, bias=False),
            nn.Conv2d(6, 9, 1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.flatten(self.layers(images), 1)


def test_a_stage_computes_small_images_so_and_frozen_weights_stay_without_a_gradient() -> None:
    model = Net()
    model.layers[1].weight.requires_grad_(False)
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    graph = export_model(model, (images,)).layer_graph
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with mock.patch.object(memory_layout, "_is_faster_on", lambda device: device.type == "cpu"):
        module = StageModule(graph.stage(0, len(graph.layers)), tensors, fast_layout=True)
    product, depthwise = small_images._product, small_images._tap_by_tap
    with (
        # Where the one tap's is a product, too, hangs on processor and threads.
        mock.patch.object(small_images, "_is_slow_product", return_value=False),
        mock.patch.object(small_images, "_product", side_effect=product) as products,
        mock.patch.object(small_images, "_tap_by_tap", side_effect=depthwise) as taps,
    ):
        (output,) = module.forward(5, module.arranged([images]), draw=None)
        torch.autograd.backward([output.square().sum()])
    assert (products.call_count, taps.call_count) == (1, 1)
    wanted = model(images)
    torch.autograd.backward([wanted.square().sum()])
    assert torch.allclose(output, wanted, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        mine = module.parameters[name].grad
        assert (mine is None) == (parameter.grad is None), name
        if mine is not None and parameter.grad is not None:
            assert torch.allclose(mine, parameter.grad, rtol=1e-4, atol=1e-4), name
