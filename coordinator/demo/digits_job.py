"""An ordinary job file: a CNN on the handwritten digits that scikit-learn ships (1,797 real images of 8 x 8 pixels).

    edgeswarm plan digits_job.py      who would compute what
    edgeswarm train digits_job.py     train it over your devices

Every fifth image is kept for the test: `test_set()` gives those to whoever evaluates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

import edgeswarm

BATCH_SIZE = 64
EPOCHS = 8
TEST_EVERY = 5
BRIGHTEST_PIXEL = 16.0
WARM_UP_ROUNDS = 10

Image = npt.NDArray[np.uint8]


class DigitsCNN(nn.Module):
    """Four convolutions and two linear layers: [batch, 1, 8, 8] -> [batch, 10] scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *convolution(1, 48),
            *convolution(48, 96),
            nn.MaxPool2d(2),  # 4 x 4
            *convolution(96, 128),
            *convolution(128, 192),
            nn.MaxPool2d(2),  # 2 x 2
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(192 * 2 * 2, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores


def convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


class Digits:
    """Images as uint8 [1, 8, 8], pixels 0 to 16, and their labels 0 to 9: raw items, since those are what travels."""

    def __init__(self, *, test: bool) -> None:
        # Imported here: only the machine that has the data needs scikit-learn, the devices don't.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        chosen = (np.arange(len(images)) % TEST_EVERY == 0) == test
        self.images: Image = images[chosen].astype(np.uint8).reshape(-1, 1, 8, 8)
        self.labels: list[int] = labels[chosen].tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return self.images[index], self.labels[index]


def training_set() -> Digits:
    return Digits(test=False)


def test_set() -> Digits:
    return Digits(test=True)


def scale(images: Image) -> torch.Tensor:
    """Pixels 0 to 16 as floats 0 to 1."""
    return torch.from_numpy(images).float() / BRIGHTEST_PIXEL


def transform(sample: tuple[Image, int], generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """What a device does to an item before it uses it."""
    image, label = sample
    return scale(image), label


def optimizer(named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=0.05, momentum=0.9, weight_decay=1e-4)


def learning_rate_schedule(round_number: int) -> float:
    """A short warm-up, then half a cosine down to 2 % over the rounds of this job."""
    training_images = 1797 - math.ceil(1797 / TEST_EVERY)
    rounds = EPOCHS * math.ceil(training_images / BATCH_SIZE)
    warm_up = min(1.0, (round_number + 1) / WARM_UP_ROUNDS)
    decay = 0.02 + 0.49 * (1.0 + math.cos(math.pi * min(1.0, round_number / rounds)))
    return warm_up * decay


job = edgeswarm.Job(
    model=DigitsCNN,
    dataset=training_set,
    transform=transform,
    loss=functional.cross_entropy,
    optimizer=optimizer,
    learning_rate_schedule=learning_rate_schedule,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    seed=1,
)
