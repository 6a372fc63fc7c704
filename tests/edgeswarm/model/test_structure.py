from __future__ import annotations

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


def test_output_classes_become_records() -> None:
    output = _Output(1.0, (2.0, 3.0))
    structure, leaves = _described(output)
    assert leaves == [1.0, 2.0, 3.0]
    built = unflatten(structure, leaves)
    assert isinstance(built, Record)
    assert built.logits == built["logits"] == built[0] == 1.0
    assert built.hidden == (2.0, 3.0)
    with pytest.raises(AttributeError):
        _ = built.loss
    assert flatten(structure, output) == leaves


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
        {},
        [],
        {"list": [{"a": 1}]},
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
