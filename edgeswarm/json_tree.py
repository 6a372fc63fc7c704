"""Nested Python values <-> JSON, exactly: a tuple comes back as a tuple, 1.0 as a float, nan as nan. No pickle.

JSON has no tuples, no whole-number keys, no nan. So containers are marked, and what is no plain value (a tensor) is a
leaf, about which the caller says what stands for it:

    (1, [2.5, "a"], {"betas": tensor})  ->  {"tuple": [1, {"list": [2.5, "a"]}, {"dict": [["betas", {"leaf": ...}]]}]}
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

JsonValue = object
Path = tuple[str, ...]

DEEPEST = 32


def to_tree(value: object, leaf: Callable[[object, Path], JsonValue], path: Path = ()) -> JsonValue:
    """The JSON form of a value.

    leaf: (what is neither None, bool, int, float, str, tuple, list nor dict, where it lies) -> what stands for it in
    the JSON; raises for what it can't keep. Subclasses count as leaves, but numpy's numbers, which come back as Python's: a
    learning rate is soon one. Raises ValueError for more than 32 levels.
    """
    if len(path) > DEEPEST:
        raise ValueError(f"{'.'.join(path)} lies more than {DEEPEST} levels deep")
    if isinstance(value, np.generic):
        value = value.item()  # a longdouble stays one, and is a leaf
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (tuple, list)) and kind in (tuple, list):
        name = "tuple" if kind is tuple else "list"
        return {name: [to_tree(item, leaf, (*path, str(index))) for index, item in enumerate(value)]}
    if isinstance(value, dict) and kind is dict and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, to_tree(item, leaf, (*path, str(key)))] for key, item in value.items()]}
    return {"leaf": leaf(value, path)}


def from_tree(tree: JsonValue, leaf: Callable[[JsonValue], object], depth: int = 0) -> object:
    """The value whose JSON form this is; `leaf` turns what stands for a leaf back into it. Raises ValueError."""
    if depth > DEEPEST:
        raise ValueError(f"the value is more than {DEEPEST} levels deep")
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, dict) and len(tree) == 1:
        [(kind, content)] = tree.items()
        if kind == "leaf":
            return leaf(content)
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if kind in ("tuple", "list") and isinstance(content, list):
            items = [from_tree(item, leaf, depth + 1) for item in content]
            return tuple(items) if kind == "tuple" else items
        if kind == "dict" and isinstance(content, list) and all(_is_pair(pair) for pair in content):
            return {key: from_tree(item, leaf, depth + 1) for key, item in content}
    raise ValueError(f"not the JSON form of a value: {str(tree)[:100]}")


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)
