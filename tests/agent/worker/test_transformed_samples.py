from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgeswarm_agent.worker.transformed_samples import UnknownTypeError, copied, same

NAN = float("nan")
VALUES: list[Any] = [
    torch.arange(6).view(2, 3),
    torch.tensor([1.0, NAN]),
    torch.tensor([1.0, 2.0], dtype=torch.float64),
    torch.tensor([True, False]),
    torch.tensor([1j, 2.0]),
    np.arange(3),
    np.arange(3, dtype=np.int32),
    np.array([1.0, NAN], dtype=np.float32),
    np.float32(2.5),
    np.int64(2),
    2,
    2.0,
    NAN,
    True,
    "two",
    b"two",
    None,
    (1, torch.zeros(2)),
    [1, torch.zeros(2)],
    {"a": torch.zeros(2), 3: (None, "x")},
    {"a": torch.ones(2), 3: (None, "x")},
]


def test_a_copy_is_the_same_and_every_other_value_is_not() -> None:
    for index, value in enumerate(VALUES):
        copy = copied(value)
        assert [same(copy, other) for other in VALUES] == [place == index for place in range(len(VALUES))]


def test_a_copy_has_memory_of_its_own() -> None:
    value: dict[str, Any] = {"image": torch.zeros(3), "more": [np.zeros(2)]}
    copy = copied(value)
    value["image"].add_(1)
    value["more"][0] += 1
    assert same(copy, {"image": torch.zeros(3), "more": [np.zeros(2)]})
    assert not copied(torch.zeros(2, requires_grad=True)).requires_grad


def test_a_subclass_of_tensor_is_as_the_tensor_that_is_kept_of_it() -> None:
    class Mask(torch.Tensor):
        """Like torchvision's."""

    assert same(copied(torch.ones(2).as_subclass(Mask)), torch.ones(2))


def test_what_it_does_not_know_is_not_copied() -> None:
    for value in (object(), {1, 2}, (1, [slice(3)])):
        with pytest.raises(UnknownTypeError):
            copied(value)
