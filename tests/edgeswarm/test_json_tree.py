from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.json_tree import DEEPEST, from_tree, to_tree

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


def no_leaf(value: object, path: tuple[str, ...] = ()) -> object:
    raise ValueError(f"{'.'.join(path)}: {value!r}")


@given(VALUES)
def test_a_value_comes_back_exactly_through_strict_json(value: Any) -> None:
    text = json.dumps(to_tree(value, no_leaf), allow_nan=False)
    assert repr(from_tree(json.loads(text), no_leaf)) == repr(value)  # repr tells 1 from 1.0 and True, and nan is nan


def test_numpys_numbers_come_back_as_pythons() -> None:
    value = {
        "lr": np.float64(0.1),
        "amsgrad": np.bool_(False),
        "step": np.int64(3),
        "eps": (np.float32(0.5), np.float64("nan")),
    }
    back = from_tree(json.loads(json.dumps(to_tree(value, no_leaf), allow_nan=False)), no_leaf)
    assert repr(back) == "{'lr': 0.1, 'amsgrad': False, 'step': 3, 'eps': (0.5, nan)}"
    with pytest.raises(ValueError, match=r"^key: "):
        to_tree({"key": np.longdouble(1)}, no_leaf)


def test_leaves_are_the_callers() -> None:
    value = {"a": (1j, [2j])}
    tree = to_tree(value, lambda leaf, path: [".".join(path), str(leaf)])
    assert json.loads(json.dumps(tree)) == {
        "dict": [["a", {"tuple": [{"leaf": ["a.0", "1j"]}, {"list": [{"leaf": ["a.1.0", "2j"]}]}]}]]
    }
    assert from_tree(tree, lambda leaf: complex(leaf[1])) == value  # type: ignore[index]


def test_what_is_no_plain_value_is_a_leaf() -> None:
    for value in ({1.5: 1}, {(1,): 1}, {True: 1}, {1, 2}, b"x"):
        with pytest.raises(ValueError, match=r"^key: "):
            to_tree({"key": value}, no_leaf)


def test_too_deep_values_are_refused_in_both_directions() -> None:
    value: object = 1
    tree: object = 1
    for _ in range(DEEPEST + 1):
        value, tree = [value], {"list": [tree]}
    with pytest.raises(ValueError, match="levels deep"):
        to_tree(value, no_leaf)
    with pytest.raises(ValueError, match="levels deep"):
        from_tree(tree, no_leaf)


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {},
        {"set": []},
        {"list": 1},
        {"tuple": {}},
        {"dict": [[1.5, 1]]},
        {"dict": [["a"]]},
        {"dict": {"a": 1}},
        {"list": [], "tuple": []},
        {"float": "1.0"},
        {"float": math.inf},
    ],
)
def test_what_no_value_looks_like_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match="not the JSON form"):
        from_tree(tree, no_leaf)
