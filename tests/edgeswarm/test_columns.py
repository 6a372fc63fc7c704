from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from edgeswarm.columns import as_array
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job

TABLE = {
    "ids": [[3, 1, 4], [1, 5, 9]],
    "weights": [[0.5, 0.25, 0.0], [1.0, 1.5, 2.0]],
    "text": ["ab", "c"],
    "label": [2, 0],
}


def job(dataset: Any, **fields: Any) -> Job:
    function: Any = print
    return Job(model=function, dataset=lambda: dataset, loss=function, optimizer=function, batch_size=2, **fields)


def hugging_face_table() -> Any:
    import datasets  # here: it takes a second

    return datasets.Dataset.from_dict(TABLE)


def hugging_face_splits() -> Any:
    import datasets

    return datasets.DatasetDict(train=hugging_face_table(), test=hugging_face_table())


def refused(opened: Any) -> EdgeswarmError:
    with pytest.raises(EdgeswarmError) as caught:
        opened()
    return caught.value


def test_one_column_is_its_value_and_several_are_a_dict() -> None:
    opened = job(hugging_face_table(), input_columns=["ids", "weights"], target_columns="label").open_dataset()
    assert len(opened) == 2
    inputs, target = opened[1]
    assert list(inputs) == ["ids", "weights"]
    assert (inputs["ids"].dtype, inputs["ids"].tolist()) == (np.int64, [1, 5, 9])
    assert (inputs["weights"].dtype, inputs["weights"].tolist()) == (np.float32, [1.0, 1.5, 2.0])
    assert target == 0


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_what_a_format_of_hugging_face_gives_stays_as_it_is(form: str) -> None:
    table = hugging_face_table().with_format(form)
    inputs, target = job(table, input_columns="ids", target_columns="label").open_dataset()[0]
    assert type(inputs) is (torch.Tensor if form == "torch" else np.ndarray)
    assert (inputs.tolist(), int(target)) == ([3, 1, 4], 2)


def test_a_data_set_of_pairs_is_given_as_it_is() -> None:
    pairs = [(1, 2)]
    assert job(pairs).open_dataset() is pairs


def test_the_evaluation_set_is_read_through_the_same_columns() -> None:
    made = job([], input_columns="ids", target_columns="label", evaluation_dataset=lambda: [{"ids": [1], "label": 3}])
    inputs, target = made.open_evaluation_dataset()[0]
    assert (inputs.tolist(), target) == ([1], 3)
    with pytest.raises(ValueError, match="no evaluation_dataset"):
        job([]).open_evaluation_dataset()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], np.int64),
        ([True, False], np.bool_),
        ([[1, 2], [3, 4]], np.int64),
        ([1, 2.5], np.float32),
        ([], np.int64),
        ([[], []], np.int64),
    ],
)
def test_lists_of_numbers_become_arrays(value: Any, dtype: Any) -> None:
    array = as_array(value)
    assert (type(array), array.dtype, array.tolist()) == (np.ndarray, dtype, value)


@pytest.mark.parametrize("value", [[[1], [1, 2]], ["a"], [1, "a"], [None], (1, 2), 3, "abc", [2**63], [{"a": 1}]])
def test_anything_else_stays_as_it_is(value: Any) -> None:
    assert as_array(value) is value


def test_a_missing_column_is_named_with_those_there() -> None:
    opened = job(hugging_face_table(), input_columns="ids", target_columns=["labels"]).open_dataset()
    error = refused(lambda: opened[1])
    assert error.code is ErrorCode.DATA_FAILED
    assert error.message == "Item 1 of the dataset has no column 'labels'; it has 'ids', 'weights', 'text', 'label'."
    wide = [{f"c{number}": 1 for number in range(100)}]
    opened = job([], input_columns="x", target_columns="c0", evaluation_dataset=lambda: wide).open_evaluation_dataset()
    error = refused(lambda: opened[0])
    assert "evaluation dataset has no column 'x'" in error.message
    assert error.message.endswith("'c11' and 88 more.")


def test_columns_of_what_are_no_dicts_are_refused() -> None:
    opened = job([(1, 2)], input_columns="a", target_columns="b").open_dataset()
    assert "Item 0 of the dataset is a tuple" in refused(lambda: opened[0]).message


class Streamed(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([])

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("dataset", "said", "remedy"),
    [
        (lambda: iter([]), "dataset() returns a list_iterator, which has no length", "__getitem__"),
        (
            lambda: torch.utils.data.DataLoader(Streamed()),
            "dataset() returns a DataLoader",
            "the dataset that it reads",
        ),
        (Streamed, "dataset() returns a Streamed", "without streaming"),
        (
            lambda: hugging_face_table().to_iterable_dataset(),
            "dataset() returns an IterableDataset",
            "without streaming",
        ),
        (
            hugging_face_splits,
            "dataset() returns a DatasetDict of several data sets: 'train', 'test'.",
            "['train']",
        ),
    ],
)
def test_what_cannot_be_read_by_index_is_refused(dataset: Callable[[], Any], said: str, remedy: str) -> None:
    error = refused(job(dataset()).open_dataset)
    assert error.code is ErrorCode.JOB_INVALID
    assert said in error.message
    assert remedy in error.remedy


def test_the_evaluation_function_is_named_where_it_returns_no_data_set() -> None:
    error = refused(job([], evaluation_dataset=lambda: iter([])).open_evaluation_dataset)
    assert error.message.startswith("evaluation_dataset() returns")
