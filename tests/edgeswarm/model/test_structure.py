from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError
from edgeswarm.model.structure import Record, check_structure, describe, flatten, unflatten

_NESTED = st.recursive(
    st.integers().map(float),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


class _Output(NamedTuple):
    logits: float
    hidden: tuple[float, float]


def _described(value: Any) -> tuple[dict[str, Any], list[float]]:
    leaves: list[float] = []

    def leaf(item: float) -> dict[str, Any]:
        leaves.append(item)
        return {"value": len(leaves) - 1}

    return describe(value, leaf), leaves


@given(value=_NESTED)
def test_a_nested_value_is_taken_apart_and_built_again(value: Any) -> None:
    structure, leaves = _described(value)
    assert check_structure(structure, len(leaves)) == structure
    assert flatten(structure, value) == leaves
    assert unflatten(structure, leaves) == value


def test_a_named_tuple_comes_back_as_one() -> None:
    output = _Output(1.0, (2.0, 3.0))
    structure, leaves = _described(output)
    assert leaves == [1.0, 2.0, 3.0]
    built = unflatten(check_structure(structure, 3), leaves)
    logits, hidden = built
    assert (logits, hidden) == output
    assert built.logits == built[0] == 1.0
    assert built.hidden == (2.0, 3.0)
    assert flatten(structure, output) == leaves


@dataclasses.dataclass
class _ModelOutput(OrderedDict[str, Any]):
    """Built as Hugging Face builds its own: fields that are filled are also keys."""

    loss: float | None = None
    values: float | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


def test_output_classes_become_records() -> None:
    output = _ModelOutput(values=1.0)
    structure, leaves = _described(output)
    built = unflatten(check_structure(structure, 1), leaves)
    assert isinstance(built, Record)
    assert built.values == built["values"] == built[0] == 1.0
    assert built.loss is None
    assert built[-1] == 1.0
    assert (built[:], built.to_tuple(), len(built), "loss" in built) == ((1.0,), (1.0,), 1, False)
    with pytest.raises(AttributeError):
        _ = built.other
    assert flatten(structure, output) == leaves


def test_what_was_none_is_none() -> None:
    structure = {"dict": [["a", {"value": 0}], ["mask", {"constant": None}]]}
    assert flatten(structure, {"a": 1.0, "mask": None}) == [1.0]
    with pytest.raises(ValueError, match=r"the model's input\['mask'\] is something, and was None"):
        flatten(structure, {"a": 1.0, "mask": 2.0})


@pytest.mark.parametrize("value", [{"b": 1.0}, [1.0], {"a": (1.0,)}])
def test_a_value_of_another_structure_says_where(value: Any) -> None:
    structure, _ = _described({"a": (1.0, 2.0)})
    with pytest.raises(ValueError, match="the model's input"):
        flatten(structure, value)


@pytest.mark.parametrize(
    "structure",
    [
        {"value": 3},
        {"value": True},
        {"tuple": 1},
        {"dict": [["a"]]},
        {"record": ["R", 1]},
        {"record": ["R", [["a", {"unfilled": 2}]]]},
        {"unfilled": True},
        {"dict": [["a", {"unfilled": True}]]},
        {},
        [],
        {"list": [{"a": 1}]},
        {"named_tuple": ["R", [["a", {"value": 0}], ["a", {"value": 1}]]]},
        {"named_tuple": ["R", [["_replace", {"value": 0}]]]},
        {"named_tuple": ["R", [["a) or print(", {"value": 0}]]]},
        {"named_tuple": ["class", [["a", {"value": 0}]]]},
        {"named_tuple": [["a", {"value": 0}]]},
    ],
)
def test_what_is_no_structure_is_refused(structure: Any) -> None:
    with pytest.raises(EdgeswarmError):
        check_structure(structure, 3)


def test_endless_nesting_is_refused() -> None:
    structure: dict[str, Any] = {"value": 0}
    for _ in range(500):
        structure = {"list": [structure]}
    with pytest.raises(EdgeswarmError, match="too deeply"):
        check_structure(structure, 1)
