"""A U-Net that finds shapes in noise: which pixels belong to a circle, a square or a triangle?

`edgeswarm train segmentation_unet.py` trains it. The images are drawn here, always the same; a list of items is a data set.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import edgeswarm

SIZE, CROP = 48, 32  # an image's side in pixels, before and after the transform


def twice(inputs, outputs):
    """GroupNorm looks at one image alone: it doesn't matter how many of them a device computes at once."""
    one, other = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(one, nn.GroupNorm(4, outputs), nn.ReLU(), other, nn.GroupNorm(4, outputs), nn.ReLU())


class UNet(nn.Module):
    """[batch, 1, CROP, CROP] -> [batch, 2, CROP, CROP], scores of noise and of a shape. Skips may cross devices."""

    def __init__(self):
        super().__init__()
        self.down_1, self.down_2, self.bottom = twice(1, 16), twice(16, 32), twice(32, 64)
        self.up_2, self.up_1, self.head = twice(64 + 32, 32), twice(32 + 16, 16), nn.Conv2d(16, 2, 1)

    def forward(self, image):
        fine = self.down_1(image)
        middle = self.down_2(functional.max_pool2d(fine, 2))
        coarse = self.bottom(functional.max_pool2d(middle, 2))
        middle = self.up_2(torch.cat([functional.interpolate(coarse, scale_factor=2), middle], 1))
        return self.head(self.up_1(torch.cat([functional.interpolate(middle, scale_factor=2), fine], 1)))


def drawn(seed):
    """An item: a noisy image, uint8 [1, SIZE, SIZE], and its mask, uint8 [SIZE, SIZE] of 0 and 1."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    mask = np.zeros((SIZE, SIZE), bool)
    for shape in range(3):
        size, dy, dx = random.integers(5, 10), y - random.integers(5, SIZE - 5), x - random.integers(5, SIZE - 5)
        circle, square = dy**2 + dx**2 <= size**2, np.maximum(abs(dy), abs(dx)) <= size
        triangle = (abs(dy) <= size) & (2 * abs(dx) <= dy + size)
        mask |= (circle, square, triangle)[shape]
    image = random.normal(np.where(mask, 140, 100), 30).clip(0, 255)
    return image.astype(np.uint8)[None], mask.astype(np.uint8)


def crop(sample, generator):
    """Image and mask at one place, which the generator draws: the same on every device that uses the sample."""
    up, left = torch.randint(SIZE - CROP + 1, (2,), generator=generator).tolist()
    image, mask = (torch.from_numpy(part)[..., up : up + CROP, left : left + CROP] for part in sample)
    return image.float() / 128 - 1, mask.long()


def intersection_over_union(scores, mask):
    """(sum, count) in pixels: both were summed over the whole evaluation set before one is divided by the other."""
    found, there = scores.argmax(1) == 1, mask == 1
    return (found & there).sum(), (found | there).sum()


job = edgeswarm.Job(
    model=UNet,
    dataset=lambda: [drawn(index) for index in range(1200)],
    evaluation_dataset=lambda: [drawn(10_000 + index) for index in range(200)],
    transform=crop,
    loss=functional.cross_entropy,
    metrics={"iou": intersection_over_union},
    best_metric="iou",
    optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], lr=0.005),
    batch_size=24,
    epochs=3,
)
