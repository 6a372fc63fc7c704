"""torchvision, where this Python has one.

Its common wheels are made for a PyTorch with CUDA. Beside one without, its native operators don't load, and the import
fails over the missing names of two of them. Transforms and data sets need none of them: with the names it imports.
It is no requirement of the tests: beside that PyTorch other libraries would find it and fail at its import as well.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch

_OPERATORS = ("nms", "qnms")
_library: Any = torch.library.Library
_kept: list[Any] = []


def torchvision_or_skip() -> None:
    """Imports it, or skips the test that asks."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
        names = _library("torchvision", "DEF")
        for operator in _OPERATORS:
            names.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(names)
        importlib.import_module("torchvision")
