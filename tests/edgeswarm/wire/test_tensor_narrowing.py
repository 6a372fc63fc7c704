from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.tensor_narrowing import narrowed, through_wire


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20),
    st.sampled_from(["bfloat16", "float16"]),
)
def test_a_second_journey_loses_nothing(values: list[float], wire_dtype: str) -> None:
    once = through_wire(torch.tensor(values, dtype=torch.float32), wire_dtype)
    assert bool(torch.isfinite(once).all())
    assert torch.equal(through_wire(once, wire_dtype), once)


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_what_is_finite_stays_so(wire_dtype: str) -> None:
    least = torch.finfo(torch.float32).min
    travelled = through_wire(torch.tensor([least, 0.0, 1e38, -least]), wire_dtype)
    assert travelled[0] == -travelled[3] == pytest.approx(least, rel=2.0**-8)
    assert torch.softmax(travelled[:1].expand(4), dim=0).tolist() == [0.25] * 4
    assert torch.equal(through_wire(travelled, wire_dtype), travelled)


@given(st.floats(1e-30, 1e30), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_float16_keeps_eleven_bits_whatever_the_scale(scale: float, values: list[float]) -> None:
    tensor = torch.tensor([1.0, *values]) * scale
    error = (through_wire(tensor, "float16") - tensor).abs()
    # Elements below 2**-28 of the largest lose some of the eleven, at most 2**-38 of the largest.
    assert bool((error <= (tensor.abs() * 2.0**-11).clamp_min(2.0**-38 * float(tensor.abs().max()))).all())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_what_is_not_finite_stays_so(value: float, wire_dtype: str) -> None:
    assert not bool(torch.isfinite(through_wire(torch.tensor([1.0, value]), wire_dtype)).all())


def test_only_float32_is_narrowed() -> None:
    for tensor in (torch.zeros(3, dtype=torch.float64), torch.arange(3), torch.tensor([True])):
        assert narrowed(tensor, "float16").tensor is tensor
    tensor = torch.randn(3)
    assert narrowed(tensor, None).tensor is tensor
    assert narrowed(tensor, "float32").tensor is tensor


def test_an_empty_tensor_and_zeros_travel() -> None:
    assert through_wire(torch.empty(0), "float16").shape == (0,)
    assert through_wire(torch.zeros(4), "float16").tolist() == [0.0] * 4
