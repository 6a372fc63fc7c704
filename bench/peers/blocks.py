"""The measured models as chains of blocks, each from one tensor to one tensor, for a pipeline that a user cuts by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))  # where jobs find it, too

from paper_models import CLASSES, DIFFERENT_ITEMS, PAPER_MODELS  # type: ignore[import-not-found]


class _FirstOf(nn.Module):
    """A block that answers with a tuple, of which the rest is not used."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.block(x)[0]
        return first


class _FeedForward(nn.Module):
    """The second half of a layer of BERT."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.intermediate, self.output = layer.intermediate, layer.output

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.intermediate(x), x)
        return result


def whole_model(name: str) -> nn.Module:
    """As edgeswarm's jobs have it, with the same initial weights on every device. Takes a batch, gives scores."""
    torch.manual_seed(0)
    model: nn.Module = PAPER_MODELS[name].make()
    return model


def blocks_of(name: str) -> list[nn.Module]:
    """The same model cut into blocks, in their order."""
    return cut_into_blocks(name, whole_model(name))


def cut_into_blocks(name: str, model: nn.Module) -> list[nn.Module]:
    """Blocks of a job's model, in their order: the parts of an nn.Sequential, else as the model of that name of PAPER_MODELS is
    cut. Raises ValueError for another name.
    """
    if isinstance(model, nn.Sequential):
        return list(model)
    whole: Any = model.model
    if name == "mobilenet_v2":
        body = whole.mobilenet_v2
        head = nn.Sequential(body.pooler, nn.Flatten(), whole.dropout, whole.classifier)
        return [body.conv_stem, *body.layer, body.conv_1x1, head]
    if name == "efficientnet_b1":
        body = whole.efficientnet
        top = nn.Sequential(body.encoder.top_conv, body.encoder.top_bn, body.encoder.top_activation)
        head = nn.Sequential(body.pooler, nn.Flatten(), whole.dropout, whole.classifier)
        return [body.embeddings, *body.encoder.blocks, top, head]
    if name == "resnet_50":
        body = whole.resnet
        layers = [layer for stage in body.encoder.stages for layer in stage.layers]
        return [body.embedder, *layers, nn.Sequential(body.pooler, whole.classifier)]
    if name == "bert_small":
        halves = [
            half for layer in whole.bert.encoder.layer for half in (_FirstOf(layer.attention), _FeedForward(layer))
        ]
        return [whole.bert.embeddings, *halves, nn.Sequential(whole.bert.pooler, whole.dropout, whole.classifier)]
    raise ValueError(f"no blocks of {name}")


def has_images(name: str) -> bool:
    """Whether its samples are images, which may lie in memory in two ways."""
    model = PAPER_MODELS[name]
    return int(model.item(model.size, torch.Generator()).dim()) == 3


def samples(
    name: str, count: int, *, memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[Tensor, Tensor]:
    """`count` samples with their classes, as the jobs make them up. memory_format: of images."""
    model = PAPER_MODELS[name]
    generator = torch.Generator().manual_seed(0)
    items = torch.stack([model.item(model.size, generator) for _ in range(DIFFERENT_ITEMS)])
    places = torch.arange(count)
    inputs = items[places % DIFFERENT_ITEMS]
    return inputs.contiguous(memory_format=memory_format) if has_images(name) else inputs, places % CLASSES


def optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01)
