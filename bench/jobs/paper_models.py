"""Jobs of the four models of Asteroid's paper, with made-up data that every device has: what is measured is the training.

The devices import this file: nothing heavy but torch at its head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import edgeswarm

CLASSES = 10
WORDS, TOKENS = 30_522, 128
# So many different items; each is used again and again, and no time goes into making them.
DIFFERENT_ITEMS = 64
ROUNDS = 16


class Logits(nn.Module):
    """The scores of a Hugging Face model, whose output is an object with fields."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x).logits
        return scores


def mobilenet_v2() -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(image_size=32, num_labels=CLASSES, tf_padding=False)
    return Logits(MobileNetV2ForImageClassification(config))


def efficientnet_b1() -> nn.Module:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        image_size=32,
        width_coefficient=1.0,
        depth_coefficient=1.1,
        hidden_dim=1280,
        dropout_rate=0.2,
        depthwise_padding=[16],
        num_labels=CLASSES,
    )
    return Logits(EfficientNetForImageClassification(config))


def resnet_50() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=CLASSES)))


def bert_small() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
        num_labels=CLASSES,
    )
    return Logits(BertForSequenceClassification(config))


def image(side: int, generator: torch.Generator) -> Tensor:
    return torch.randn(3, side, side, generator=generator)


def text(tokens: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, WORDS, (tokens,), generator=generator)


@dataclass(frozen=True)
class PaperModel:
    """batch_size: samples of a round. item: makes one input of this size."""

    make: Callable[[], nn.Module]
    batch_size: int
    item: Callable[[int, torch.Generator], Tensor]
    size: int


PAPER_MODELS = {
    "mobilenet_v2": PaperModel(mobilenet_v2, 256, image, 32),
    "efficientnet_b1": PaperModel(efficientnet_b1, 256, image, 32),
    "resnet_50": PaperModel(resnet_50, 64, image, 64),
    "bert_small": PaperModel(bert_small, 64, text, TOKENS),
}


class MadeUp:
    """length items (input, class) of one kind."""

    def __init__(self, model: PaperModel, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = [model.item(model.size, generator) for _ in range(DIFFERENT_ITEMS)]
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._inputs[index % DIFFERENT_ITEMS], index % CLASSES


def make_job(
    name: str,
    *,
    rounds: int = ROUNDS,
    batch_size: int | None = None,
    data: str = "local",
    wire_dtype: str | None = None,
) -> edgeswarm.Job:
    """One epoch of so many rounds; plain SGD. data, wire_dtype: as a job's."""
    model = PAPER_MODELS[name]
    samples = batch_size or model.batch_size

    def optimizer(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for _, parameter in named], lr=0.01)

    return edgeswarm.Job(
        model=model.make,
        dataset=lambda: MadeUp(model, rounds * samples),
        data=data,
        wire_dtype=wire_dtype,
        loss=functional.cross_entropy,
        optimizer=optimizer,
        batch_size=samples,
        epochs=1,
    )
