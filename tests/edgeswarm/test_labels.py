"""Labels out of range, as PyTorch's own losses complain of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.labels import label_error


def complaint(loss: Any, output: Any, targets: Any) -> EdgeswarmError | None:
    try:
        loss(output, targets)
    except Exception as error:
        return label_error(error, output, targets, indices=range(10, 20), where="nano-1")
    raise AssertionError("the loss takes it")


def tokens(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def field(output: Any, targets: Any) -> torch.Tensor:
    return functional.cross_entropy(output["logits"], targets["labels"])


@pytest.mark.parametrize(
    ("loss", "output", "targets", "said"),
    [
        (
            functional.cross_entropy,
            torch.zeros(3, 2),
            torch.tensor([0, 1, 5]),
            "Item 12 .* label 5 .* 2 classes, 0 to 1",
        ),
        (
            functional.cross_entropy,
            torch.zeros(2, 4),
            torch.tensor([0, -1]),
            "Item 11 .* label -1 .* 4 classes, 0 to 3",
        ),
        (
            functional.cross_entropy,
            torch.zeros(2, 3, 4, 4),
            torch.full((2, 4, 4), 3),
            "Item 10 .* label 3 .* 3 classes, 0 to 2",
        ),
        (tokens, torch.zeros(2, 6, 9), torch.tensor([[0] * 6, [0, 1, 9, 0, 0, 0]]), "Item 11 .* label 9 .* 9 classes"),
        (
            field,
            {"logits": torch.zeros(2, 3)},
            {"labels": torch.tensor([1, 4]), "w": torch.ones(2)},
            "label 4 .* 3 classes",
        ),
        (
            lambda output, targets: output.gather(1, targets[:, None]).mean(),
            torch.zeros(2, 3),
            torch.tensor([0, 3]),
            "label 3 .* 3 classes",
        ),
    ],
)
def test_the_item_the_label_and_the_classes_are_named(loss: Any, output: Any, targets: Any, said: str) -> None:
    error = complaint(loss, output, targets)
    assert error is not None
    assert error.code is ErrorCode.DATA_FAILED
    with pytest.raises(EdgeswarmError, match=said):
        raise error
    assert "nano-1" in error.message
    assert error.remedy.startswith("Let the labels run from 0 to ")


def test_more_outputs_are_advised_only_where_they_help() -> None:
    above = complaint(functional.cross_entropy, torch.zeros(2, 3), torch.tensor([7, 0]))
    below = complaint(functional.cross_entropy, torch.zeros(2, 3), torch.tensor([-1, 0]))
    assert above is not None
    assert below is not None
    assert "give the model's last layer 8 outputs" in above.remedy
    assert "outputs" not in below.remedy


def test_other_errors_are_not_the_labels() -> None:
    assert complaint(torch.matmul, torch.zeros(2, 3), torch.zeros(2, 4)) is None
    assert complaint(lambda output, targets: output[7].mean(), torch.zeros(2, 3), torch.tensor([0, 1])) is None
    assert complaint(functional.cross_entropy, torch.zeros(2, 3, 5), torch.tensor([4, 9])) is None


def test_a_card_says_of_any_wrong_label_the_same() -> None:
    def asserts(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: device-side assert triggered")

    wrong = complaint(asserts, torch.zeros(2, 3), torch.tensor([0, 3]))
    assert wrong is not None
    assert "label 3" in wrong.message
    assert complaint(asserts, torch.zeros(2, 3), torch.tensor([0, 2])) is None
