"""How models fall into layers, and what the layers say of themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from edgeswarm.model.export import export_model, without_memory
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.model.structure import unflatten
from tests.models import DigitsCNN, SmallGPT

from .examples import EACH_EXAMPLE, example
from .pipeline import all_tensors


@pytest.mark.parametrize(
    ("name", "fewest", "most"),
    [
        ("digits", 5, 10),
        pytest.param("mobilenet", 20, 60, marks=pytest.mark.thorough),
        ("gpt", 8, 20),
        ("unet", 5, 10),
        ("dicts", 5, 12),
    ],
)
def test_a_model_has_useful_layers(name: str, fewest: int, most: int) -> None:
    assert fewest <= len(example(name).exported.layer_graph.layers) <= most


def test_many_layers_of_one_kind_are_thinned_evenly() -> None:
    model = nn.Sequential(*(part for _ in range(100) for part in (nn.Linear(4, 4), nn.ReLU())))
    layers = export_model(model, (torch.zeros(4, 4),)).layer_graph.layers
    assert 50 <= len(layers) <= 60
    assert max(len(layer.parameters) for layer in layers) <= 2 * 3, "three linear ones"


@pytest.mark.thorough
def test_layers_are_named_after_modules() -> None:
    names = [layer.name for layer in example("digits").exported.layer_graph.layers]
    assert names == ["features.0", "features.3", "features.7", "features.10", "head.0", "head.2"]
    assert "features.5.conv" in [layer.name for layer in example("mobilenet").exported.layer_graph.layers]


@pytest.mark.parametrize("name", EACH_EXAMPLE)
def test_the_graph_survives_json(name: str) -> None:
    graph = example(name).exported.layer_graph
    assert LayerGraph.from_json(json.dumps(graph.to_json())) == graph


@pytest.mark.parametrize("name", EACH_EXAMPLE)
def test_every_tensor_is_held_and_bytes_add_up(name: str) -> None:
    given = example(name)
    graph = given.exported.layer_graph
    model = given.model
    held = set(graph.holders)
    assert held == {*dict(model.named_parameters()), *dict(model.named_buffers()), *given.exported.constants}
    once = {parameter for layer in graph.layers for parameter in layer.parameters}
    assert sum(graph.tensors[parameter].bytes for parameter in once) == sum(
        parameter.nbytes for parameter in model.parameters()
    )
    for layer, cut in zip(graph.layers, graph.cuts[1:], strict=True):
        assert layer.output_bytes == sum(value.bytes_per_sample for value in cut)
        assert len({value.name for value in cut}) == len(cut)


def test_tied_weights_are_one_tensor_with_two_holders() -> None:
    graph = example("gpt").exported.layer_graph
    assert graph.tensors["embedding.weight"].aliases == ("head.weight",)
    assert "head.weight" not in graph.tensors
    assert graph.holders["embedding.weight"] == (0, len(graph.layers) - 1)
    assert graph.holders["position.weight"] == (0,)  # what depends on no input is computed where it is needed


def test_skips_cross_every_cut_between_their_ends() -> None:
    graph = example("unet").exported.layer_graph
    assert [len(cut) for cut in graph.cuts] == [1, 1, 2, 3, 3, 2, 1, 1]


def test_what_needs_no_gradient_says_so() -> None:
    graph = example("dicts").exported.layer_graph
    kinds = {(value.dtype, value.requires_grad) for cut in graph.cuts[1:-1] for value in cut}
    assert kinds == {("float32", True), ("int64", False), ("bool", False)}
    assert not any(value.requires_grad for value in graph.cuts[0])


@pytest.mark.thorough
def test_repeated_blocks_have_one_signature() -> None:
    graph = example("mobilenet").exported.layer_graph
    by_name = {layer.name: layer for layer in graph.layers}
    assert by_name["features.9.conv"].signature == by_name["features.10.conv"].signature
    assert by_name["features.9.conv"].signature != by_name["features.5.conv"].signature
    gpt = example("gpt").exported.layer_graph
    assert len({layer.signature for layer in gpt.layers}) < len(gpt.layers)


def test_a_signature_knows_gradients_and_sizes() -> None:
    def signatures(width: int, *, frozen: bool) -> list[str]:
        model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4), nn.Linear(4, 4))
        model[0].requires_grad_(not frozen)
        layers = export_model(model, (torch.randn(4, 4),)).layer_graph.layers
        return [layer.signature for layer in layers]

    plain = signatures(6, frozen=False)
    assert signatures(6, frozen=False) == plain
    assert not set(signatures(7, frozen=False)[:2]) & set(plain)
    # After a frozen layer no gradient goes back: cheaper, so another signature.
    assert signatures(6, frozen=True)[:2] != plain[:2]


def test_batch_norm_over_one_position_needs_two_samples() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    graph = export_model(model, (torch.randn(4, 4),)).layer_graph
    assert [layer.least_batch for layer in graph.layers] == [2, 1]
    assert graph.least_batch(0, 2) == 2
    assert all(layer.least_batch == 1 for layer in example("digits").exported.layer_graph.layers)
    assert export_model(model.eval(), (torch.randn(4, 4),)).layer_graph.least_batch(0, 2) == 1


class _ScalarBetween(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        first = self.first(values)
        mean = first.mean()
        second = self.second(first)
        last: torch.Tensor = self.third(second)
        return torch.add(last, mean)


def test_what_has_no_batch_dimension_never_crosses() -> None:
    graph = export_model(_ScalarBetween(), (torch.randn(4, 4),)).layer_graph
    assert [layer.name for layer in graph.layers] == ["first", "second"]
    assert all(value.batch_dim >= 0 for cut in graph.cuts for value in cut)


class _SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        turned = self.first(values.transpose(0, 1))
        back: torch.Tensor = self.second(turned).transpose(0, 1)
        return back


def test_the_batch_may_be_any_dimension() -> None:
    graph = export_model(_SequenceFirst(), (torch.randn(4, 3, 4),)).layer_graph
    (value,) = graph.cuts[1]
    assert value.shape == (3, -1, 4)
    assert value.batch_dim == 1
    assert value.with_batch(5) == (3, 5, 4)


class _ChannelsLast(nn.Module):
    """A layer normalisation over channels, as ConvNeXt has it: images go on channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        normed = self.norm(self.first(image).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        last: torch.Tensor = self.third(normed + self.second(normed).relu_()) + normed
        return last


def test_a_value_crosses_in_the_order_of_its_memory() -> None:
    exported = export_model(_ChannelsLast(), (torch.randn(4, 4, 6, 5),))
    graph = exported.layer_graph
    (normed,) = graph.cuts[1]
    assert normed.shape == (-1, 6, 5, 4)
    assert all(value.batch_dim == 0 and value.requires_grad for cut in graph.cuts[1:] for value in cut)
    tensors = all_tensors(_ChannelsLast(), exported)
    seen = []
    for stages in ([(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]):
        values: tuple[torch.Tensor, ...] = (torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(0)),)
        for first, end in stages:
            module = StageModule(graph.stage(first, end), tensors)
            values = module.forward(3, [value.detach().contiguous() for value in values], draw=None)
            assert end == 3 or all(value.is_contiguous() for value in values)
        seen.append(values[0])
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert seen[0].stride() == seen[2].stride()


class _Features(_ChannelsLast):
    """A backbone that gives features of an earlier block, too, laid out channels last."""

    def forward(self, image: torch.Tensor) -> Any:
        normed = self.norm(self.first(image).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.third(normed + self.second(normed).relu_()) + normed, normed


def test_what_was_made_before_the_last_layer_is_returned_as_the_model_has_it() -> None:
    torch.manual_seed(0)
    model = _Features()
    exported = export_model(model, (torch.randn(4, 4, 6, 5),))
    graph = LayerGraph.from_json(json.loads(json.dumps(exported.layer_graph.to_json())))
    image = torch.randn(3, 4, 6, 5)
    expected = model(image)
    for stages in ([(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]):
        values: tuple[torch.Tensor, ...] = (image,)
        for first, end in stages:
            module = StageModule(graph.stage(first, end), all_tensors(model, exported))
            values = module.forward(3, [value.detach().contiguous() for value in values], draw=None)
        found = unflatten(graph.output_structure, values)
        assert len(found) == 2
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()


def test_what_has_too_many_dimensions_for_a_frame_never_crosses() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            windows = self.first(values).reshape(-1, 1, 1, 1, 1, 1, 1, 1, 8)
            result: torch.Tensor = self.third(self.second(windows).reshape(-1, 8))
            return result

    graph = export_model(Windows(), (torch.randn(4, 8),)).layer_graph
    assert all(len(value.shape) <= 8 for cut in graph.cuts for value in cut)


def test_a_signature_knows_only_what_the_layer_reads() -> None:
    """The mask goes along over the first two blocks; it costs them nothing."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            for index, block in enumerate(self.blocks):
                values = torch.relu(block(values))
                if index == 1:
                    values = values * mask
            return values

    layers = export_model(Masked(), (torch.randn(4, 6), torch.randn(4, 6))).layer_graph.layers
    assert [layer.name for layer in layers] == [f"blocks.{index}" for index in range(4)]
    assert layers[2].signature == layers[3].signature
    assert layers[0].output_bytes == 2 * layers[2].output_bytes
    assert layers[0].signature != layers[1].signature


@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_a_model_without_memory_gives_the_same_graph(name: str) -> None:
    with without_memory():
        model = {"digits": DigitsCNN, "gpt": SmallGPT}[name]()
    exported = export_model(model, example(name).batch(4))
    assert exported.layer_graph == example(name).exported.layer_graph


def test_a_stage_that_is_not_there_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="layers 3 to 3"):
        example("digits").exported.layer_graph.stage(3, 3)
