"""Tests that need a graphics card: marked, and skipped where there is none that torch can compute on."""

from __future__ import annotations

import pytest
import torch

needs_card = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics card here that torch can compute on"),
]
