"""Fine-tuning: a backbone that was trained on the digits 0 to 4 stays frozen, and a new head learns 5 to 9 on top of it.

`python make_backbone.py` first makes backbone.safetensors; then `edgeswarm train fine_tuning.py`.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import edgeswarm

WIDTH = 64


def convolution(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


class Backbone(nn.Sequential):
    """[batch, 1, 8, 8] -> [batch, WIDTH * 4] features."""

    def __init__(self):
        super().__init__(
            *convolution(1, 32), *convolution(32, WIDTH), nn.MaxPool2d(2), *convolution(WIDTH, WIDTH), nn.MaxPool2d(2)
        )


class FineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone().requires_grad_(False)  # frozen: no gradients, no optimizer state, nothing to send
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH * 4, 64), nn.ReLU(), nn.Linear(64, 5))

    def train(self, mode=True):
        """The backbone stays in evaluation mode, so that its BatchNorms keep their running statistics too."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images):
        return self.head(self.backbone(images))


class Digits:
    """scikit-learn's images of five of the digits, with labels 0 to 4. Every fifth image is for the evaluation."""

    def __init__(self, first, *, evaluation=False):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        chosen = (labels // 5 == first // 5) & ((np.arange(len(images)) % 5 == 0) == evaluation)
        self.images, self.labels = images[chosen].astype(np.uint8).reshape(-1, 1, 8, 8), labels[chosen] - first

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


def transform(sample, generator):
    return torch.from_numpy(sample[0]).float() / 16, sample[1]


job = edgeswarm.Job(
    model=FineTuned,
    weights="backbone.safetensors",  # read on your machine, in place of the initial weights of the backbone
    dataset=lambda: Digits(5),
    evaluation_dataset=lambda: Digits(5, evaluation=True),
    transform=transform,
    loss=functional.cross_entropy,
    metrics={"accuracy": lambda output, labels: (output.argmax(1) == labels).float().mean()},
    optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=0.003),
    batch_size=32,
    epochs=5,
)
