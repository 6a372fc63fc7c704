from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_columns import TensorColumn
from edgeswarm.wire.tensor_file import DTYPES, write_tensors
from edgeswarm.wire.tensor_samples import collate, collate_rows, decode_blocks, decode_items, encode_items

from ..tensors import SHAPES, same_bits, tensors

NUMPY_DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, ">f4"]


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> Any:
    raw = np.random.RandomState(draw(st.integers(0, 2**31))).randint(0, 100, shape)
    return np.asarray(raw).astype(dtype)


@st.composite
def leaf_kinds(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    """A strategy for one kind of leaf: all that it draws make one batch."""
    shape = draw(SHAPES)
    return draw(
        st.sampled_from(
            [
                tensors(shape, draw(st.sampled_from(sorted(DTYPES.values(), key=str)))),
                arrays(shape, draw(st.sampled_from(NUMPY_DTYPES))),
                arrays((), draw(st.sampled_from(NUMPY_DTYPES[:-1]))).map(lambda array: array[()]),
                st.booleans(),
                st.integers(-(2**63), 2**63 - 1),
                st.floats(),
                st.text(max_size=3),
                st.binary(max_size=3),
            ]
        )
    )


@st.composite
def item_kinds(draw: st.DrawFn) -> st.SearchStrategy[Any]:
    def inside(inner: Any) -> Any:
        parts = st.lists(inner, min_size=1, max_size=3)
        return (
            parts.map(lambda p: st.tuples(*p))
            | parts.map(lambda p: st.tuples(*p).map(list))
            | parts.map(lambda p: st.fixed_dictionaries({f"k{len(p) - n}": item for n, item in enumerate(p)}))
        )

    part = st.recursive(leaf_kinds(), inside, max_leaves=3)
    return st.tuples(draw(part), draw(part))


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    kind = draw(item_kinds())
    return draw(st.lists(kind, min_size=1, max_size=4))


def same(one: Any, other: Any) -> bool:
    """Equal in type, and bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same_bits(one, other)
    if isinstance(one, (np.ndarray, np.generic)):  # only the byte order may become this machine's
        if type(one) is not type(other):
            return False
        one, other = (np.asarray(value, dtype=value.dtype.newbyteorder("=")) for value in (one, other))
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@settings(deadline=None)
@given(batches())
def test_items_come_back_exactly_in_every_part(items: list[Any]) -> None:
    parts: dict[SamplePart, Callable[[Any], Any]] = {
        SamplePart.BOTH: lambda item: item,
        SamplePart.INPUTS: lambda item: item[0],
        SamplePart.TARGETS: lambda item: item[1],
    }
    for part, of in parts.items():
        assert same(decode_items(bytearray(encode_items(items, part))), [of(item) for item in items])


@settings(deadline=None)
@given(batches(), st.data())
def test_a_batch_of_rows_is_what_default_collate_makes_of_the_items(items: list[Any], data: st.DataObject) -> None:
    # Fetched in two calls, taken in any order.
    first, second = (decode_blocks(encode_items(part, SamplePart.BOTH)) for part in (items, items[::-1]))
    places = [(block, row) for block in first + second for row in range(block.rows)]
    chosen = data.draw(st.lists(st.sampled_from(range(len(places))), min_size=1, max_size=6))
    batch = collate_rows([places[index] for index in chosen])
    everything = items + items[::-1]
    items_as_native = [decode_items(encode_items([everything[index]], SamplePart.BOTH))[0] for index in chosen]
    assert same(as_lists(batch), as_lists(default_collate(items_as_native)))
    assert same(batch, collate(items_as_native))


@pytest.mark.thorough
@settings(deadline=None)
@given(st.lists(batches(), min_size=2, max_size=3).map(lambda groups: [item for group in groups for item in group]))
def test_items_of_different_structures_come_back_in_order(items: list[Any]) -> None:
    assert same(decode_items(encode_items(items, SamplePart.BOTH)), items)


def test_small_equal_items_are_one_block_and_stay_uint8() -> None:
    items = [({"image": torch.full((8, 8), n, dtype=torch.uint8)}, n % 10) for n in range(100)]
    data = encode_items(items, SamplePart.BOTH)
    [block] = decode_blocks(data)
    assert block.rows == 100
    dtypes = [column.values.dtype for column in block.columns if isinstance(column, TensorColumn)]
    assert dtypes == [torch.uint8, torch.int64]
    assert len(data) < 100 * (64 + 8) + 600


def test_a_batch_is_not_a_view_of_what_is_kept() -> None:
    [block] = decode_blocks(encode_items([(torch.zeros(2), 0), (torch.zeros(2), 1)], SamplePart.BOTH))
    batch: Any = collate_rows([(block, 0), (block, 1)])
    batch[0].add_(1)
    item: Any = block.item(0)
    item[0].add_(1)
    assert same(block.item(0), (torch.zeros(2), 0))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, "a set"),
        (2**63, "a int"),
        (bytearray(b"x"), "a bytearray"),
        (np.array(["a"]), "numpy <U1"),
        (np.array([object()]), "numpy object"),
        (np.zeros(1, dtype=np.complex64), "numpy complex64"),
        (torch.zeros(1, dtype=torch.complex64), "a tensor of complex64"),
        (torch.zeros(1).to_sparse(), "a sparse tensor of float32"),
        ({1.5: 2}, "a dict"),
    ],
)
def test_what_cannot_be_sent_is_named(value: Any, said: str) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        encode_items([((value,), 1)], SamplePart.BOTH)
    assert caught.value.code is ErrorCode.DATA_FAILED
    assert said in caught.value.message


@pytest.mark.parametrize("item", [3, (1,), (1, 2, 3), {"inputs": 1}])
def test_an_item_that_is_no_pair_is_refused(item: Any) -> None:
    with pytest.raises(EdgeswarmError, match=r"not a pair \(inputs, targets\)"):
        encode_items([item], SamplePart.INPUTS)


def test_unequal_shapes_do_not_make_a_batch() -> None:
    blocks = decode_blocks(encode_items([(torch.zeros(2), 0), (torch.zeros(3), 0)], SamplePart.BOTH))
    with pytest.raises(EdgeswarmError, match="don't make one batch"):
        collate_rows([(block, 0) for block in blocks])


def described(columns: str, *, rows: int = 2, tree: str = '{"leaf": 0}') -> str:
    return f'[{{"tree": {tree}, "columns": {columns}, "rows": {rows}}}]'


@pytest.mark.parametrize(
    "blocks",
    [
        "",
        "1",
        "[1]",
        described('[["tensor", null]]', rows=3),
        described('[["tensor", null]]', rows=0),
        described('[["tensor", null]]', tree='{"leaf": 1}'),
        described('[["tensor", null]]', tree='{"leaf": -1}'),
        described('[["tensor", null]]', tree='{"leaf": "0"}'),
        described('[["int", null]]'),
        described('[["code", null]]'),
        described("[[[], null]]"),
        described('[["text", null]]'),
        described("[3]"),
        described("{}"),
    ],
)
def test_wild_descriptions_are_refused(blocks: str) -> None:
    data = write_tensors({"0.0": torch.zeros(2, 3)}, ("edgeswarm-samples/2", blocks))
    with pytest.raises(ValueError, match=r"\w"):
        decode_items(data)
