"""EfficientNet-B1 of Hugging Face's transformers, from its configuration, with random weights.

`edgeswarm train efficientnet_b1.py` trains it on scikit-learn's digits, enlarged to 32 x 32 pixels in colour.
"""

import numpy as np
import torch
from torch.nn import functional

import edgeswarm

SIDE = 32  # pixels


def model():
    """Runs on your machine alone, so that transformers is imported here: the devices need PyTorch, nothing else."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    b1 = {"width_coefficient": 1.0, "depth_coefficient": 1.1, "hidden_dim": 1280, "dropout_rate": 0.2}
    # The library's defaults are made for loading trained weights; from those random ones nothing is ever learnt.
    scratch = {"initializer_range": 0.1, "batch_norm_momentum": 0.1}
    return EfficientNetForImageClassification(EfficientNetConfig(num_labels=10, image_size=SIDE, **b1, **scratch))


class Digits:
    """Items as they are stored, 64 bytes each; every fifth is kept for the evaluation. The devices enlarge them."""

    def __init__(self, *, evaluation=False):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        chosen = (np.arange(len(images)) % 5 == 0) == evaluation
        self.images, self.labels = images[chosen].astype(np.uint8).reshape(-1, 8, 8), labels[chosen]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


def transform(sample, generator):
    """uint8 [8, 8] -> {"pixel_values": float [3, SIDE, SIDE]}: the model is called as model(pixel_values=...)."""
    image, label = sample
    grey = torch.from_numpy(image)[None, None].float() / 8 - 1
    large = functional.interpolate(grey, size=(SIDE, SIDE), mode="bilinear")[0]
    return {"pixel_values": large.expand(3, SIDE, SIDE)}, label


def loss(output, labels):
    return functional.cross_entropy(output.logits, labels)


def accuracy(output, labels):
    return (output.logits.argmax(1) == labels).float().mean()


job = edgeswarm.Job(
    model=model,
    dataset=Digits,
    evaluation_dataset=lambda: Digits(evaluation=True),
    transform=transform,
    loss=loss,
    metrics={"accuracy": accuracy},
    best_metric="accuracy",
    optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=0.001),
    batch_size=64,
    epochs=8,
)
