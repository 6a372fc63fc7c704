"""One reader for every JSON document: each kind of field, and the sentence that names the one that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.json_fields import LONGEST_LIST, Fields


def invalid(problem: str) -> EdgeswarmError:
    return EdgeswarmError(ErrorCode.PLAN_INVALID, problem)


def fields(**values: Any) -> Fields:
    return Fields.of(values, invalid, what="a plan")


def test_each_kind_of_field() -> None:
    read = fields(
        text="a", flag=False, integer=8.0, number=2, texts=["a"], integers=[0, 1.0], rows=[[1], []], words=[["a"]]
    )
    assert (read.text("text"), read.flag("flag"), read.number("number")) == ("a", False, 2.0)
    assert read.integer("integer", minimum=1) == 8
    assert read.texts("texts") == ("a",)
    assert read.integers("integers", minimum=0) == (0, 1)
    assert read.number_lists("rows", minimum=0) == ((1.0,), ())
    assert read.text_lists("words") == (("a",),)


def test_objects_within_know_where_they_are() -> None:
    read = fields(one={"a": 1}, many=[{"a": 1}, {"a": 2}], nested=[[{"a": 1}], [{"a": 2}, {"a": 3}]])
    assert read.section("one").path == "one"
    assert read.each("many", lambda entry: (entry.path, entry.integer("a", minimum=0))) == (
        ("many[0]", 1),
        ("many[1]", 2),
    )
    assert read.each_of_lists("nested", lambda entry: entry.path) == (
        ("nested[0][0]",),
        ("nested[1][0]", "nested[1][1]"),
    )


def test_what_is_null_is_not_there() -> None:
    read = fields(a=None)
    assert not read.has("a")
    assert read.optional_text("a") is None
    assert read.optional_integer("a", minimum=0) is None
    assert read.optional_number("b") is None
    assert read.optional_section("a") is None
    assert read.texts("a", optional=True) == ()
    assert list(read.sections("b", optional=True)) == []
    assert read.text("a", default="x") == "x"
    assert read.integer("a", minimum=0, default=3) == 3
    read.expect_format("x/1", optional=True)


WRONG: list[tuple[Any, Callable[[Fields], object], str]] = [
    (None, lambda f: f.text("v"), "v is missing"),
    (None, lambda f: f.expect_format("x/1"), "format is missing"),
    (3, lambda f: f.text("v"), "v must be a text, not 3"),
    (1, lambda f: f.flag("v"), "v must be true or false, not 1"),
    (True, lambda f: f.integer("v", minimum=0), "v must be a whole number of at least 0, not True"),
    (1e20, lambda f: f.integer("v", minimum=0), "v must be a whole number of at most 9223372036854775807, not "),
    (2.5, lambda f: f.integer("v", minimum=0), "v must be a whole number of at least 0, not 2.5"),
    (-(10**5000), lambda f: f.integer("v", minimum=0), "not a number beyond 64 bits"),
    (0, lambda f: f.number("v", minimum=1), "v must be a number of at least 1, not 0"),
    (float("nan"), lambda f: f.number("v"), "v must be a finite number, not nan"),
    (10**400, lambda f: f.number("v"), "v must be a finite number, not a number beyond 64 bits"),
    ({}, lambda f: f.items("v"), "v must be a list, not an object"),
    (["a", 1], lambda f: f.texts("v"), "v[1] must be a text, not 1"),
    ([1, -1], lambda f: f.integers("v", minimum=0), "v[1] must be a whole number of at least 0, not -1"),
    ([[1], [2, "x"]], lambda f: f.number_lists("v", minimum=0), "v[1][1] must be a number of at least 0, not 'x'"),
    ([["a"], "b"], lambda f: f.text_lists("v"), "v[1] must be a list, not 'b'"),
    ([], lambda f: f.section("v"), "v must be an object, not a list"),
    ({1: 2}, lambda f: f.section("v"), "v must be an object, not an object"),
    (
        [{"a": "x" * 100}],
        lambda f: f.each("v", lambda e: e.flag("a")),
        f"v[0].a must be true or false, not '{'x' * 60}'...",
    ),
    ([[{}]], lambda f: f.each_of_lists("v", lambda e: e.text("a")), "v[0][0].a is missing"),
    ([0] * (LONGEST_LIST + 1), lambda f: f.items("v"), f"v has {LONGEST_LIST + 1} entries"),
]


@pytest.mark.parametrize(("value", "read", "words"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_value_is_named_by_its_field(value: Any, read: Callable[[Fields], object], words: str) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        read(fields(v=value))
    assert words in caught.value.message


@pytest.mark.parametrize("document", [[], "text", None, 3, {1: 2}])
def test_a_document_is_one_object(document: object) -> None:
    with pytest.raises(EdgeswarmError, match="a plan is one JSON object"):
        Fields.of(document, invalid, what="a plan")


def test_another_format_is_told() -> None:
    with pytest.raises(EdgeswarmError, match="format is 'x/2', expected 'x/1'"):
        fields(format="x/2").expect_format("x/1", optional=True)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4))
def test_whatever_stands_there_a_reader_gives_its_type_or_the_error(value: Any) -> None:
    readers: list[tuple[Callable[[Fields], object], type]] = [
        (lambda f: f.text("v"), str),
        (lambda f: f.flag("v"), bool),
        (lambda f: f.integer("v", minimum=-5), int),
        (lambda f: f.number("v"), float),
        (lambda f: f.texts("v"), tuple),
        (lambda f: f.number_lists("v", minimum=0), tuple),
    ]
    for read, kind in readers:
        with contextlib.suppress(EdgeswarmError):
            assert type(read(fields(v=value))) is kind
