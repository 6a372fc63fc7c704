"""How many bytes an item of a data set is on its way to the devices, about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBER_BYTES = 8


def item_bytes(value: Any) -> int:
    """Of arrays and tensors their elements, of pictures their pixels, of texts their characters, of containers all inside.

    value: the item as the data set gives it, before any transform. What travels packed may be less.
    """
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(item_bytes(each) for each in value.values())
    if isinstance(value, (tuple, list)):
        return sum(item_bytes(each) for each in value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "getbands") and hasattr(value, "size"):
        width, height = value.size
        return int(width * height * len(value.getbands()))
    return NUMBER_BYTES
