"""The models that people bring: Hugging Face's from configurations with random weights, and plain PyTorch's own kinds.

Each at two sizes: small, for the tests, and full, the size of the papers, for `python -m bench.models`. Nothing is downloaded.
Dropout is off by default, so that an unsplit model can be compared to the bit. transformers, which takes seconds to import, is
imported where a model is made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .models import UNet

LABELS = 10

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Size:
    """make: the model, in training mode. batch(n): (args, kwargs) of a call with n samples, the same for the same n."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Arguments]


@dataclasses.dataclass(frozen=True)
class ZooModel:
    """alike: paths of two modules of the small one whose layers cost the same, so that they are profiled once."""

    small: Size
    full: Size
    alike: tuple[str, str] | None = None


def images(size: int) -> Callable[[int], Arguments]:
    """Pictures of 3 by `size` by `size`, given by keyword as Hugging Face's models are called."""
    return lambda batch: ((), {"pixel_values": torch.randn(batch, 3, size, size, generator=_generator(batch))})


def plain_images(size: int) -> Callable[[int], Arguments]:
    return lambda batch: ((torch.randn(batch, 3, size, size, generator=_generator(batch)),), {})


def text(length: int, vocabulary: int) -> Callable[[int], Arguments]:
    """Token ids and a mask of what is padding: each sample is of another length."""

    def batch_of(batch: int) -> Arguments:
        generator = _generator(batch)
        ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
        lengths = torch.randint(length // 2, length, (batch, 1), generator=generator)
        mask = (torch.arange(length)[None, :] < lengths).long()
        return (), {"input_ids": ids, "attention_mask": mask}

    return batch_of


def ids(length: int, vocabulary: int) -> Callable[[int], Arguments]:
    return lambda batch: (
        (),
        {"input_ids": torch.randint(0, vocabulary, (batch, length), generator=_generator(batch))},
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _module(made: Any) -> nn.Module:
    assert isinstance(made, nn.Module)
    return made


def mobilenet_v2(*, dropout: float = 0.0, **changes: Any) -> nn.Module:
    import transformers

    config = transformers.MobileNetV2Config(
        num_labels=LABELS, tf_padding=False, classifier_dropout_prob=dropout, **changes
    )
    return _module(transformers.MobileNetV2ForImageClassification(config))


def efficientnet(*, dropout: float = 0.0, **changes: Any) -> nn.Module:
    """EfficientNet-B1 unless changed."""
    import transformers

    b1 = {"width_coefficient": 1.0, "depth_coefficient": 1.1, "hidden_dim": 1280, "image_size": 240}
    config = transformers.EfficientNetConfig(
        num_labels=LABELS, dropout_rate=dropout, drop_connect_rate=dropout, **{**b1, **changes}
    )
    return _module(transformers.EfficientNetForImageClassification(config))


def resnet(**changes: Any) -> nn.Module:
    """ResNet-50 unless changed."""
    import transformers

    return _module(transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=LABELS, **changes)))


def bert(*, dropout: float = 0.0, **changes: Any) -> nn.Module:
    """BERT-small unless changed."""
    import transformers

    small = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    config = transformers.BertConfig(
        num_labels=LABELS, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **{**small, **changes}
    )
    return _module(transformers.BertForSequenceClassification(config))


def gpt2(*, dropout: float = 0.0, **changes: Any) -> nn.Module:
    """GPT-2 (124 million parameters) unless changed; the head's weight is the embedding's."""
    import transformers

    config = transformers.GPT2Config(
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, **{"use_cache": False, **changes}
    )
    return _module(transformers.GPT2LMHeadModel(config))


def vit(*, dropout: float = 0.0, **changes: Any) -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        num_labels=LABELS, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **changes
    )
    return _module(transformers.ViTForImageClassification(config))


def swin(*, drop_path: float = 0.0, **changes: Any) -> nn.Module:
    import transformers

    config = transformers.SwinConfig(num_labels=LABELS, drop_path_rate=drop_path, **changes)
    return _module(transformers.SwinForImageClassification(config))


def convnext(*, drop_path: float = 0.0, **changes: Any) -> nn.Module:
    import transformers

    config = transformers.ConvNextConfig(num_labels=LABELS, drop_path_rate=drop_path, **changes)
    return _module(transformers.ConvNextForImageClassification(config))


class TextLSTM(nn.Module):
    """Token ids [batch, length] to [batch, classes] through LSTMs over the sequence."""

    def __init__(self, *, vocabulary: int = 100, width: int = 16, layers: int = 2, classes: int = LABELS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, num_layers=layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.encoder(self.embedding(input_ids))
        hidden, _ = self.decoder(hidden)
        scores: Tensor = self.head(hidden.mean(1))
        return scores


class FrozenBackbone(nn.Module):
    """Fine-tuning as it is written: a ResNet that isn't trained, and a head that is.

    The backbone is in evaluation mode, so that its running statistics stay too.
    """

    def __init__(self, **changes: Any) -> None:
        import transformers

        super().__init__()
        self.backbone = transformers.ResNetModel(transformers.ResNetConfig(**changes)).requires_grad_(False)
        width = self.backbone.config.hidden_sizes[-1]
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, LABELS))

    def train(self, mode: bool = True) -> FrozenBackbone:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, pixel_values: Tensor) -> Tensor:
        features = self.backbone(pixel_values).pooler_output
        scores: Tensor = self.head(features.flatten(1))
        return scores


_small_resnet = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 3], "layer_type": "bottleneck"}
_small_text = {"vocab_size": 60, "max_position_embeddings": 16}

ZOO: dict[str, ZooModel] = {
    "efficientnet_b1": ZooModel(
        small=Size(
            functools.partial(
                efficientnet,
                width_coefficient=0.25,
                hidden_dim=320,
                in_channels=[32, 16, 24, 40],
                out_channels=[16, 24, 40, 80],
                kernel_sizes=[3, 3, 5, 3],
                strides=[1, 2, 2, 2],
                num_block_repeats=[1, 2, 2, 3],
                expand_ratios=[1, 6, 6, 6],
                depthwise_padding=[],
            ),
            images(32),
        ),
        full=Size(efficientnet, images(32)),
        alike=("efficientnet.encoder.blocks.10", "efficientnet.encoder.blocks.11"),
    ),
    "mobilenet_v2": ZooModel(
        small=Size(functools.partial(mobilenet_v2, depth_multiplier=0.25), images(64)),
        full=Size(mobilenet_v2, images(32)),
        alike=("mobilenet_v2.layer.6", "mobilenet_v2.layer.7"),
    ),
    "resnet_50": ZooModel(
        small=Size(functools.partial(resnet, **_small_resnet), images(32)),
        full=Size(resnet, images(84)),
        alike=("resnet.encoder.stages.1.layers.1", "resnet.encoder.stages.1.layers.2"),
    ),
    "bert_small": ZooModel(
        small=Size(
            functools.partial(
                bert, num_hidden_layers=3, hidden_size=32, num_attention_heads=4, intermediate_size=64, **_small_text
            ),
            text(12, 60),
        ),
        full=Size(bert, text(32, 30522)),
        alike=("bert.encoder.layer.0", "bert.encoder.layer.1"),
    ),
    "gpt2": ZooModel(
        small=Size(functools.partial(gpt2, n_layer=3, n_embd=32, n_head=4, vocab_size=60, n_positions=16), ids(12, 60)),
        full=Size(gpt2, ids(128, 50257)),
        alike=("transformer.h.0", "transformer.h.1"),
    ),
    "vit": ZooModel(
        small=Size(
            functools.partial(
                vit,
                num_hidden_layers=3,
                hidden_size=32,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
            ),
            images(32),
        ),
        full=Size(vit, images(224)),
        alike=("vit.layers.0", "vit.layers.1"),
    ),
    "swin": ZooModel(
        small=Size(
            functools.partial(
                swin, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, image_size=32, patch_size=2
            ),
            images(32),
        ),
        full=Size(swin, images(224)),
        alike=("swin.encoder.layers.0.blocks.0.mlp.fc1", "swin.encoder.layers.0.blocks.1.mlp.fc1"),
    ),
    "convnext": ZooModel(
        small=Size(
            functools.partial(convnext, depths=[1, 1, 3, 1], hidden_sizes=[8, 16, 24, 32], image_size=64), images(64)
        ),
        full=Size(convnext, images(224)),
        alike=("convnext.encoder.stages.2.layers.0", "convnext.encoder.stages.2.layers.1"),
    ),
    "unet": ZooModel(small=Size(UNet, plain_images(16)), full=Size(UNet, plain_images(256))),
    "lstm": ZooModel(
        small=Size(TextLSTM, lambda batch: ((ids(12, 100)(batch)[1]["input_ids"],), {})),
        full=Size(
            functools.partial(TextLSTM, vocabulary=20_000, width=512),
            lambda batch: ((ids(64, 20_000)(batch)[1]["input_ids"],), {}),
        ),
    ),
    "frozen_backbone": ZooModel(
        small=Size(functools.partial(FrozenBackbone, **_small_resnet), images(32)),
        full=Size(FrozenBackbone, images(224)),
        alike=("backbone.encoder.stages.1.layers.1", "backbone.encoder.stages.1.layers.2"),
    ),
}
