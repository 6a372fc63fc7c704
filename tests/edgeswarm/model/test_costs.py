from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FunctionType

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from edgeswarm.model.export import export_model
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.stage import StageModule

from .examples import example
from .pipeline import all_tensors


def test_flops_of_a_grouped_convolution_count_each_group_once() -> None:
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False) for _ in range(2)))
    first, second = export_model(model, (torch.randn(4, 8, 5, 5),)).layer_graph.layers
    forward = 2 * 8 * 5 * 5 * 9
    assert first.flops_forward == second.flops_forward == forward
    assert first.flops_backward == forward  # the input needs no gradient
    assert second.flops_backward == 2 * forward


def test_flops_of_attention_are_counted() -> None:
    layers = {layer.name: layer for layer in example("gpt").exported.layer_graph.layers}
    attention = layers["blocks.0.attention"]
    assert attention.flops_forward == 2 * 2 * 4 * 16 * 16 * 8  # two products, 4 heads, 16 by 16 tokens, 8 wide
    assert attention.flops_backward == 5 * attention.flops_forward // 2  # the scores are computed again


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(8, 16, batch_first=True)
        self.second = nn.LSTM(16, 32, batch_first=True, bidirectional=True)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.second(self.first(sequence)[0])[0]
        return last


def test_an_lstm_costs_its_products_and_keeps_its_workspace() -> None:
    length = 12
    first, second = export_model(_Recurrent(), (torch.randn(4, length, 8),)).layer_graph.layers
    assert first.flops_forward == 2 * length * 4 * 16 * (8 + 16)
    assert second.flops_forward == 2 * 2 * length * 4 * 32 * (16 + 32)
    assert second.flops_backward == 2 * second.flops_forward
    assert second.saved_bytes > 2 * length * 16 * 32 * 4


@pytest.mark.parametrize("name", ["digits", pytest.param("mobilenet", marks=pytest.mark.thorough), "gpt", "unet"])
def test_saved_bytes_are_those_that_a_real_run_keeps(name: str) -> None:
    given = example(name)
    graph = given.exported.layer_graph
    tensors = all_tensors(given.model, given.exported)
    stage = StageModule(graph.stage(0, len(graph.layers)), tensors)
    own = {tensor.data_ptr() for tensor in tensors.values()}
    seen: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        stage.forward(16, list(given.batch(16)), draw=None)
    counted = 16 * sum(layer.saved_bytes for layer in graph.layers)
    assert counted == pytest.approx(sum(seen.values()), rel=0.03)


@pytest.mark.parametrize("name", ["digits", pytest.param("mobilenet", marks=pytest.mark.thorough), "gpt", "unet"])
def test_waiting_bytes_are_those_that_a_real_backward_leaves(name: str) -> None:
    given = example(name)
    graph = given.exported.layer_graph
    tensors = all_tensors(given.model, given.exported)
    stage = StageModule(graph.stage(0, len(graph.layers)), tensors)
    later = LaterWeights()
    outputs = stage.forward(16, list(given.batch(16)), draw=None, later=later)
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    own = {tensor.data_ptr() for tensor in tensors.values()}
    held = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors_in(later._left)}
    left = sum(size for place, size in held.items() if place not in own)
    assert (left > 0) == (name != "unet"), "of convolutions whose results nobody keeps none can wait"
    assert 16 * sum(layer.waiting_bytes for layer in graph.layers) == pytest.approx(left, rel=0.03)


def _tensors_in(thing: object) -> Iterator[torch.Tensor]:
    """What functions hold that were made inside others, and collections of them."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, (tuple, deque)):
        for part in thing:
            yield from _tensors_in(part)
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            yield from _tensors_in(cell.cell_contents)


def test_what_is_frozen_waits_for_nothing() -> None:
    """In multiples of 10 numbers a sample: a product's values and its result."""

    def layer(out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(10, out), nn.GELU())

    frozen = layer(10).requires_grad_(False)
    model = nn.Sequential(layer(10), frozen, layer(20))
    layers = export_model(model, (torch.zeros(4, 10),)).layer_graph.layers
    counted = {
        part: sum(layer.waiting_bytes for layer in layers if layer.name.startswith(f"{part}")) / 40 for part in "012"
    }
    assert counted == {"0": 2, "1": 0, "2": 3}


def test_what_a_layer_makes_and_nothing_keeps_is_let_go() -> None:
    """In multiples of 10 numbers a sample: a linear's and a sine's inputs are kept for the backward; what is written in place is
    nothing new.
    """

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.linear(x)  # let go; the sum is an input
            return (made + 1).add_(2)

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(self.linear(x))

    model = nn.Sequential(Part(), Keeping(), nn.Linear(10, 10))
    layers = export_model(model, (torch.zeros(4, 10),)).layer_graph.layers
    of_one = 4 * 10
    assert [layer.let_go_bytes // of_one for layer in layers] == [1, 0, 1]


@pytest.mark.parametrize("name", ["digits", "gpt", "unet"])
def test_a_stage_keeps_its_inputs_beside_what_it_saves(name: str) -> None:
    given = example(name)
    graph = given.exported.layer_graph
    tensors = all_tensors(given.model, given.exported)
    count = len(graph.layers)
    inputs = list(given.batch(16))
    for cut in range(count):
        stage = StageModule(graph.stage(cut, count), tensors)
        own = {tensor.data_ptr() for tensor in tensors.values()}
        held = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in inputs}
        kept: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:  # noqa: B023
                held[storage.data_ptr()] = storage.nbytes()  # noqa: B023
                kept.append(tensor)  # noqa: B023
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            stage.forward(16, inputs, draw=None)
        counted = sum(layer.saved_bytes for layer in graph.layers[cut:]) + graph.layers[cut].held_input_bytes
        assert 16 * counted == pytest.approx(sum(held.values()), rel=0.05)
        first = StageModule(graph.stage(cut, cut + 1), tensors)
        inputs = [
            value.detach().clone().requires_grad_(value.requires_grad) for value in first.forward(16, inputs, draw=None)
        ]
