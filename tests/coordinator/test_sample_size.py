from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from edgeswarm_coordinator.sample_size import item_bytes


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (np.zeros((8, 8), np.uint8), 64),
        (torch.zeros(3, 4), 48),
        (7, 8),
        (b"abc", 3),
        ("text", 4),
        ({"ids": np.zeros(5, np.int64), "rest": [1, 2]}, 56),
        ((np.zeros(2, np.float32), 3), 16),
        (Image.new("RGB", (4, 5)), 60),
    ],
)
def test_bytes_of_an_item(item: object, size: int) -> None:
    assert item_bytes(item) == size
