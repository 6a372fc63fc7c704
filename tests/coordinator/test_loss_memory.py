from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from edgeswarm_coordinator.loss_memory import loss_bytes, target_bytes

ROWS, CLASSES = 4, 1000
FLOAT_BYTES = 4


def output() -> torch.Tensor:
    """As of a model: not a leaf, with a gradient."""
    return torch.randn(ROWS, CLASSES, requires_grad=True) * 2


def test_cross_entropy_saves_as_much_as_the_output_and_has_as_much_in_the_backward() -> None:
    found = loss_bytes(functional.cross_entropy, output(), torch.arange(ROWS))
    assert 2 * CLASSES * FLOAT_BYTES <= found < 2.1 * CLASSES * FLOAT_BYTES


def test_a_loss_that_saves_nothing_of_its_own_takes_nothing() -> None:
    assert loss_bytes(lambda given, _: given.sum(), output(), None) == 0


def test_what_the_model_gave_and_the_targets_are_not_the_losss() -> None:
    def product(given: Any, targets: Any) -> Any:
        return (given["a"] * targets).sum()

    assert loss_bytes(product, {"a": output(), "b": (output(),)}, torch.randn(ROWS, CLASSES)) == 0


def test_a_target_is_all_that_is_in_it() -> None:
    targets = {"boxes": torch.zeros(ROWS, 5, 4), "classes": torch.zeros(ROWS, dtype=torch.int64), "name": "street"}
    assert target_bytes(targets, samples=ROWS) == 5 * 4 * FLOAT_BYTES + 8
    assert target_bytes(None, samples=ROWS) == 0


def test_a_loss_that_cannot_be_watched_is_let_be() -> None:
    def squares(given: Any, targets: Any) -> Any:
        return torch.func.vmap(lambda row: (row * row).sum())(given).sum()

    assert loss_bytes(squares, output(), None) == 0


def test_one_that_fails_when_it_is_watched_says_nothing() -> None:
    def failing(given: Any, targets: Any) -> Any:
        raise RuntimeError("not now")

    assert loss_bytes(failing, output(), None) == 0
