"""Jobs whose test accuracy can be waited for: scikit-learn's digits, by a small CNN and, enlarged to 32 x 32, by MobileNetV2.

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

TEST_EVERY = 5  # every fifth image is kept for the test
# Images to train on are a multiple of this: whole mini-batches of each task. A mini-batch of 30 images at the end of an epoch,
# whose batch norms see no more, throws the test behind it back by some percent, and a peer with shares of 128 leaves it out.
WHOLE = 128


class Digits:
    """Images of 8 x 8 pixels from 0 to 16, as (image, digit): 360 for the test, and 1,408 to train on."""

    def __init__(self, *, test: bool = False) -> None:
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        chosen = [index for index in range(len(images)) if (index % TEST_EVERY == 0) == test]
        if not test:
            chosen = chosen[: len(chosen) // WHOLE * WHOLE]
        self._images = torch.tensor(images[chosen], dtype=torch.uint8).reshape(-1, 1, 8, 8)
        self.digits = torch.from_numpy(digits[chosen])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._images[index], int(self.digits[index])


def small(sample: tuple[Tensor, int], _: torch.Generator) -> tuple[Tensor, int]:
    return sample[0].float() / 16, sample[1]


def enlarged(sample: tuple[Tensor, int], _: torch.Generator) -> tuple[Tensor, int]:
    """[1, 8, 8] -> [3, 32, 32]."""
    image = functional.interpolate(sample[0][None].float() / 16, size=32, mode="bilinear")[0]
    return image.expand(3, 32, 32).contiguous(), sample[1]


def cnn() -> nn.Module:
    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *convolution(1, 32),
        *convolution(32, 64),
        nn.MaxPool2d(2),
        *convolution(64, 96),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(96 * 2 * 2, 10),
    )


def mobilenet_v2() -> nn.Module:
    from paper_models import mobilenet_v2 as made  # type: ignore[import-not-found]  # beside this file: a job brings its folder

    model: nn.Module = made()
    return model


def adamw(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named], lr=0.003)


def accuracy(output: Tensor, digits: Tensor) -> Tensor:
    return (output.argmax(1) == digits).float().mean()


@dataclass(frozen=True)
class Task:
    """target: the test accuracy to reach, within so many epochs."""

    make: Callable[[], nn.Module]
    transform: Callable[[tuple[Tensor, int], torch.Generator], tuple[Tensor, int]]
    batch_size: int
    target: float
    epochs: int


TASKS = {
    "cnn": Task(cnn, small, batch_size=64, target=0.97, epochs=8),
    "mobilenet_v2": Task(mobilenet_v2, enlarged, batch_size=128, target=0.95, epochs=16),
}


def make_job(name: str) -> edgeswarm.Job:
    """`local` data: every device has the images, as every peer has them."""
    task = TASKS[name]
    return edgeswarm.Job(
        model=task.make,
        dataset=Digits,
        evaluation_dataset=lambda: Digits(test=True),
        transform=task.transform,
        data="local",
        loss=functional.cross_entropy,
        optimizer=adamw,
        metrics={"accuracy": accuracy},
        batch_size=task.batch_size,
        epochs=task.epochs,
        seed=1,
    )
