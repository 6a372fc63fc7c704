"""Items of a user's data set, before the user's transform gets them: with memory of their own, and read as a whole."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch


def own_copy(item: Any) -> Any:
    """The item with memory of its own: a transform may write into it, and the data set may have given what it holds itself.

    Of tensors, arrays, images and plain containers of these; anything else is the same object.
    """
    kind = type(item)
    if isinstance(item, torch.Tensor):
        return item.detach().clone()
    if isinstance(item, np.ndarray) or _is_image(item):
        return item.copy()
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return kind(*map(own_copy, item))
    if kind in (tuple, list):
        return kind(map(own_copy, item))
    if kind is dict:
        return {key: own_copy(value) for key, value in item.items()}
    return item


def load_images(item: Any) -> None:
    """Reads the pixels of all images in it, whose files are open until then: of many items they would be too many."""
    if _is_image(item):
        item.load()
    elif isinstance(item, dict):
        for value in item.values():
            load_images(value)
    elif isinstance(item, (tuple, list)):
        for value in item:
            load_images(value)


def _is_image(value: Any) -> bool:
    """Of Pillow's, which is imported where there are any."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)
