"""The models that people bring compute in stages what they compute in one piece: the same bits.

Small configurations of each kind; `python -m bench.models` takes the full sizes.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.draws import DrawKey
from edgeswarm.model.export import ExportedModel, export_model, without_memory
from edgeswarm.model.layer_graph import LayerGraph
from tests.zoo import ZOO, Size, bert, gpt2, images, resnet, swin, text

from .exactness import as_written, build, differences, logits_of, loss_by_key
from .pipeline import Pipeline, all_tensors, bounds

pytestmark = pytest.mark.thorough


# One of many blocks like another's takes seconds, and is in `make soak`.
REBUILT = [pytest.param(name, marks=[pytest.mark.soak] if name == "efficientnet_b1" else []) for name in ZOO]


@functools.cache
def _example(name: str) -> tuple[nn.Module, ExportedModel]:
    """The small model and its export; neither may be changed."""
    return build(ZOO[name].small)


@pytest.mark.parametrize("name", REBUILT)
def test_stages_rebuilt_from_json_have_the_bits_of_the_model(name: str) -> None:
    model, exported = _example(name)
    graph = LayerGraph.from_json(json.dumps(exported.layer_graph.to_json()))
    assert graph == exported.layer_graph
    rebuilt = ExportedModel(layer_graph=graph, constants=exported.constants)
    for batch in (1, 3, 7):
        for stages in (1, 2, 3):
            assert differences(model, rebuilt, ZOO[name].small, batch=batch, stages=stages) == []


@pytest.mark.parametrize("name", ZOO)
def test_layers_have_the_names_and_the_tensors_of_the_users_modules(name: str) -> None:
    model, exported = _example(name)
    graph = exported.layer_graph
    modules = dict(model.named_modules())
    assert all(layer.name.partition(":")[0] in modules for layer in graph.layers)
    assert len({layer.name for layer in graph.layers}) == len(graph.layers) >= 4
    held = {name for layer in graph.layers for name in layer.parameters} | set(graph.unused)
    assert held >= dict(model.named_parameters()).keys()
    assert [layer.least_batch for layer in graph.layers] == [1] * len(graph.layers)
    embeddings = [name for name, module in modules.items() if isinstance(module, nn.Embedding)]
    assert all(layer.flops_forward > 0 for layer in graph.layers if layer.name not in embeddings)


@pytest.mark.parametrize("name", [name for name, model in ZOO.items() if model.alike])
def test_blocks_that_are_alike_share_their_signatures(name: str) -> None:
    layers = _example(name)[1].layer_graph.layers

    def signatures(path: str) -> list[str]:
        return [layer.signature for layer in layers if f"{layer.name}.".startswith(f"{path}.")]

    first, second = ZOO[name].alike or ("", "")
    assert signatures(first)
    # The first and the last layer of a block may have taken in what comes before and after it.
    assert (signatures(first)[1:-1] or signatures(first)) == (signatures(second)[1:-1] or signatures(second))
    assert len({layer.signature for layer in layers}) < len(layers)


@pytest.mark.parametrize("name", ["vit", "convnext", "frozen_backbone"])
def test_a_model_without_memory_gives_the_same_graph(name: str) -> None:
    """Their initial weights are drawn in loops until they fit, or depend on numbers that are tensors for a while."""
    with without_memory():
        model = ZOO[name].small.make().train()
    args, kwargs = ZOO[name].small.batch(4)
    with as_written():
        assert export_model(model, args, kwargs).layer_graph == _example(name)[1].layer_graph


def test_a_frozen_backbone_costs_no_gradient() -> None:
    graph = _example("frozen_backbone")[1].layer_graph
    frozen = [layer for layer in graph.layers if layer.name.startswith("backbone")]
    assert len(frozen) > 10
    assert not any(layer.trainable_param_bytes or layer.flops_backward or layer.saved_bytes for layer in frozen[:-1])
    assert not any(value.requires_grad for cut in graph.cuts[: len(frozen) + 1] for value in cut)
    assert not graph.batch_norms


def test_tied_weights_are_one_tensor_with_two_holders() -> None:
    graph = _example("gpt2")[1].layer_graph
    assert graph.tensors["transformer.wte.weight"].aliases == ("lm_head.weight",)
    assert graph.holders["transformer.wte.weight"] == (0, len(graph.layers) - 1)


def test_a_last_map_of_one_position_needs_two_samples() -> None:
    size = Size(lambda: resnet(embedding_size=4, hidden_sizes=[8, 8], depths=[1, 2]), images(8))
    model, exported = build(size)
    least = [layer.least_batch for layer in exported.layer_graph.layers]
    assert least[0] == 1
    assert least[-2] == 2
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(*size.batch(1)[0], **size.batch(1)[1])
    assert differences(model, exported, size, batch=2, stages=3) == []


@pytest.mark.parametrize("name", ["bert", "swin"])
def test_what_is_dropped_does_not_depend_on_the_stages(name: str) -> None:
    """Dropout, dropout in the attention, and whole samples' blocks."""
    sizes = {
        "bert": Size(
            lambda: bert(dropout=0.2, num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=32),
            text(8, 60),
        ),
        "swin": Size(
            lambda: swin(drop_path=0.4, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4, image_size=32),
            images(32),
        ),
    }
    model, exported = build(sizes[name])
    args, kwargs = sizes[name].batch(4)
    key = DrawKey(seed=1, round=2, micro_batch=3, first_sample=0, end_sample=4)

    def run(stages: int) -> tuple[Tensor, dict[str, Tensor]]:
        pipeline = Pipeline(exported, all_tensors(model, exported), bounds(exported.layer_graph, stages))
        outputs = pipeline.forward(args, kwargs, batch=4, draw=key, own_loss=True)
        torch.autograd.backward(loss_by_key(outputs))
        pipeline.backward()
        return logits_of(outputs), pipeline.gradients()

    logits, gradients = run(1)
    assert not torch.equal(logits, logits_of(model(*args, **kwargs)))
    for stages in (2, 3):
        again, gradients_again = run(stages)
        assert torch.equal(again, logits)
        assert all(torch.equal(gradients_again[name], value) for name, value in gradients.items())


def test_a_language_model_needs_no_setting_to_leave_its_cache_out() -> None:
    size = Size(
        lambda: gpt2(use_cache=True, n_layer=2, n_embd=16, n_head=2, vocab_size=60, n_positions=16), text(8, 60)
    )
    model, exported = build(size)
    config: Any = model.config
    assert config.use_cache is True
    ((kind, content),) = exported.layer_graph.output_structure.items()
    assert kind == "record"
    assert [key for key, item in content[1] if item != {"unfilled": True}] == ["logits"]
    assert differences(model, exported, size, batch=3, stages=2) == []


class _Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Any:
        return self.linear(values), Size(make=nn.Identity, batch=lambda batch: ((), {}))


def test_an_object_that_cannot_be_built_on_a_device_is_named() -> None:
    with pytest.raises(EdgeswarmError, match="object of the type Size") as caught:
        export_model(_Foreign(), (torch.randn(4, 4),))
    assert caught.value.code is ErrorCode.EXPORT_FAILED
