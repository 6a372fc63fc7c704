"""A small CNN on the handwritten digits that scikit-learn ships: the shortest whole job.

`edgeswarm train digits_cnn.py` trains it over your devices and tells the accuracy on images that it never saw.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import edgeswarm


def model():
    """[batch, 1, 8, 8] -> [batch, 10] scores. Runs on your machine alone, under the job's seed."""

    def convolution(inputs, outputs):
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


class Digits:
    """1,797 images of 8 x 8 pixels; every fifth is kept for the evaluation.

    An item is a pair (inputs, targets), raw and the same every time: it is what travels to the devices.
    """

    def __init__(self, *, evaluation=False):
        from sklearn.datasets import load_digits  # here and not above: the devices don't need it

        images, labels = load_digits(return_X_y=True)
        chosen = (np.arange(len(images)) % 5 == 0) == evaluation
        self.images = images[chosen].astype(np.uint8).reshape(-1, 1, 8, 8)  # pixels 0 to 16
        self.labels = labels[chosen]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


def transform(sample, generator):
    """Runs on the device that uses the sample. Nothing random here: the generator stays unused."""
    image, label = sample
    return torch.from_numpy(image).float() / 16, label


def optimizer(named_parameters):
    """Gets the parameters of one device's layers."""
    return torch.optim.AdamW([parameter for _, parameter in named_parameters], lr=0.003)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean()


job = edgeswarm.Job(
    model=model,
    dataset=Digits,
    transform=transform,
    loss=functional.cross_entropy,
    optimizer=optimizer,
    evaluation_dataset=lambda: Digits(evaluation=True),
    metrics={"accuracy": accuracy},
    batch_size=64,
    epochs=5,
    seed=1,
)
