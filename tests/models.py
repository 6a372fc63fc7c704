"""Small models that many tests use. Each trains in milliseconds; each brings one difficulty of cutting a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class DigitsCNN(nn.Module):
    """The demo's kind of CNN: [batch, 1, size, size] to [batch, 10]; size is 8 or 28."""

    def __init__(self, *, batch_norm: bool = True, channels: int = 8, size: int = 8) -> None:
        super().__init__()

        def block(before: int, after: int) -> list[nn.Module]:
            norm: list[nn.Module] = [nn.BatchNorm2d(after)] if batch_norm else []
            return [nn.Conv2d(before, after, 3, padding=1, bias=not batch_norm), *norm, nn.ReLU(inplace=True)]

        self.features = nn.Sequential(
            *block(1, channels),
            *block(channels, channels),
            nn.MaxPool2d(2),
            *block(channels, 2 * channels),
            *block(2 * channels, 2 * channels),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(2 * channels * (size // 4) ** 2, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(image).flatten(1))
        return scores


class _InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, *, stride: int, expand: int) -> None:
        super().__init__()
        hidden = before * expand
        self.residual = stride == 1 and before == after
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(before, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, after, 1, bias=False),
            nn.BatchNorm2d(after),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, image: Tensor) -> Tensor:
        output: Tensor = self.conv(image)
        return image + output if self.residual else output


class MobileNetV2(nn.Module):
    """MobileNetV2 for [batch, 3, 32, 32], a quarter as wide, without dropout: depth-wise convolutions, ReLU6 in place."""

    #: (expansion, channels, repeats, stride)
    BLOCKS = ((1, 4, 1, 1), (6, 8, 2, 1), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1))

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        channels = 8
        features: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU6(inplace=True))
        ]
        for expand, after, repeats, stride in self.BLOCKS:
            for index in range(repeats):
                step = stride if index == 0 else 1
                features.append(_InvertedResidual(channels, after, stride=step, expand=expand))
                channels = after
        features.append(
            nn.Sequential(nn.Conv2d(channels, 320, 1, bias=False), nn.BatchNorm2d(320), nn.ReLU6(inplace=True))
        )
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(320, classes)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(image).mean((2, 3)))
        return scores


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        # No bias: softmax cancels that of the keys, so that its gradient is noise, which Adam would turn into steps.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        shaped = self.qkv(tokens).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = shaped.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.dropout(self.attention(self.norm_1(tokens)))
        mixed: Tensor = tokens + self.dropout(self.mlp(self.norm_2(tokens)))
        return mixed


class SmallGPT(nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocabulary]; the head's weight is the embedding's."""

    def __init__(
        self, *, vocabulary: int = 50, width: int = 32, blocks: int = 3, length: int = 16, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, 4, causal=True, dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        tokens = self.embedding(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens))
        return logits


class SmallTransformer(nn.Module):
    """Float sequences [batch, length, features] to [batch, classes]: nothing random, no batch statistics."""

    def __init__(
        self, *, features: int = 8, width: int = 32, blocks: int = 3, classes: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList(_Block(width, 4, causal=False, dropout=dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        tokens = self.embed(sequence)
        for block in self.blocks:
            tokens = block(tokens)
        scores: Tensor = self.head(self.norm(tokens).mean(1))
        return scores


class UNet(nn.Module):
    """[batch, 3, 16, 16] to [batch, 2, 16, 16]: two skips over many layers."""

    def __init__(self) -> None:
        super().__init__()
        self.down_1, self.down_2 = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.middle_1, self.middle_2 = nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 16, 3, 1, 1)
        self.up_1, self.up_2 = nn.Conv2d(32, 8, 3, 1, 1), nn.Conv2d(16, 8, 3, 1, 1)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = functional.relu(self.down_1(image))
        second = functional.relu(self.down_2(first))
        middle = functional.relu(self.middle_2(functional.relu(self.middle_1(second))))
        up = torch.cat([functional.interpolate(middle, scale_factor=2.0), second], 1)
        up = functional.relu(self.up_1(up))
        up = torch.cat([functional.interpolate(up, scale_factor=2.0), first], 1)
        masks: Tensor = self.out(functional.relu(self.up_2(up)))
        return masks


class _DictBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        hidden, (mask, total) = state["hidden"], state["pair"]
        mixed = torch.tanh(self.mix(hidden)) * torch.sigmoid(self.gate(hidden))
        hidden = hidden + mixed.masked_fill(~mask, 0.0)
        return {"hidden": hidden, "pair": (mask, total + hidden.sum(1))}


class DictModel(nn.Module):
    """A dict of values [batch, 12] and lengths [batch] to a dict; dicts and tuples go between its modules."""

    def __init__(self, *, width: int = 12, blocks: int = 4) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(_DictBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, 5)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        hidden = self.first(batch["values"])
        mask = torch.arange(self.width, device=hidden.device)[None, :] < batch["lengths"][:, None]
        state: dict[str, Any] = {"hidden": hidden, "pair": (mask, hidden.new_zeros(hidden.shape[0]))}
        for block in self.blocks:
            state = block(state)
        return {"scores": self.head(state["hidden"]), "extra": (state["pair"][1], batch["lengths"]), "scale": 0.5}
