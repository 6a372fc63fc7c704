from __future__ import annotations

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.tensor_misfits import collate_named, describe_batch


def test_items_that_fit_make_a_batch() -> None:
    inputs, targets = collate_named([(torch.ones(3), 1), (torch.zeros(3), 2)], [7, 9])
    assert inputs.shape == (2, 3)
    assert targets.tolist() == [1, 2]


def test_of_many_parts_some_are_described() -> None:
    assert describe_batch(list(range(200))) == f"({', '.join(12 * ['int'])}, and 188 more)"
    assert describe_batch({"a": 1, "b": torch.ones(2)}) == "{a: int, b: float32 [2]}"


def test_two_items_that_do_not_fit_are_named_with_what_they_are() -> None:
    items = [(torch.ones(3, 4), 1), (torch.ones(3, 4), 0), (torch.ones(3, 5), 1)]
    with pytest.raises(EdgeswarmError) as caught:
        collate_named(items, [4, 8, 15])
    assert caught.value.code is ErrorCode.DATA_FAILED
    assert caught.value.message == (
        "Items 4 and 15 of the dataset don't make one batch: one is (float32 [3, 4], int), the other (float32 [3, 5], int)."
    )
    assert "one shape" in caught.value.remedy


def test_two_items_that_differ_in_their_last_part_are_named_too() -> None:
    """Of many parts: then all of them are shown."""
    columns = {f"column{index}": 1.0 for index in range(20)}
    with pytest.raises(EdgeswarmError, match=r"Items 4 and 8 .*column19: float32 \[2\]"):
        collate_named([(columns, 1), (columns | {"column19": torch.zeros(2)}, 1)], [4, 8])
