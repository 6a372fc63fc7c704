"""Items that a transform may write into, and images whose files are closed."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgeswarm.item_copies import load_images, own_copy

Pair = namedtuple("Pair", ["image", "label"])


def test_what_is_written_into_a_copy_stays_there() -> None:
    held: dict[str, Any] = {"image": torch.zeros(2), "sizes": [np.zeros(2), (torch.zeros(1), "text", None, 3)]}
    copy = own_copy((held, Pair(torch.zeros(2), 1)))
    copy[0]["image"] += 1
    copy[0]["sizes"][0] += 1
    copy[0]["sizes"][1][0].fill_(1)
    copy[0].pop("sizes")
    copy[1].image.fill_(1)
    assert not held["image"].any()
    assert not held["sizes"][0].any()
    assert held["sizes"][1][0] == 0
    assert type(copy[1]) is Pair


def test_what_nobody_knows_is_the_same_object() -> None:
    other = object()
    assert own_copy([other])[0] is other


def test_images_are_copied_and_their_files_closed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    held = image.new("L", (2, 2))
    own_copy(held).putpixel((0, 0), 9)
    assert held.getpixel((0, 0)) == 0
    held.save(tmp_path / "one.png")
    before = len(os.listdir("/proc/self/fd"))
    items = [({"image": image.open(tmp_path / "one.png")}, [number]) for number in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    load_images(items)
    assert len(os.listdir("/proc/self/fd")) == before
