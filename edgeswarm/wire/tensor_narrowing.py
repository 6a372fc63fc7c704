"""Tensors that travel in fewer bits than they compute in: float32 as bfloat16 or float16.

bfloat16 has float32's range and 8 bits of precision. float16 has 11, but a range in which gradients get lost or overflow; so a
frame is multiplied by the power of two that puts its largest element just below the top, and says which:

    float32   3.0e-9 ... 1.7e-4     * 2**27  ->  float16   0.4 ... 22817      exponent -27
                                    * 2**-27 <-

A power of two changes no digit, so that nothing but the rounding to 11 bits is lost. What has travelled once travels on
without another loss: a chunk goes around a ring, and all end with the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .frames import LARGEST_EXPONENT

WIRE_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# The largest element is brought to at least 2**14 and below 2**15: float16 ends at 65504.
_TOP_EXPONENT = 15
# Beyond these a number rounds to infinity, and the least float32, which masks are made of, would no more be one: a softmax over
# nothing else is no number then.
_LARGEST = {torch.bfloat16: torch.finfo(torch.bfloat16).max, torch.float16: math.ldexp(1.0 - 2.0**-11, 128)}
# From here on a fraction below 1 rounds to 1 in float16, and belongs to the next power of two: else its second journey
# would have another exponent than its first.
_ROUNDS_TO_ONE = 1.0 - 2.0**-12


@dataclass(frozen=True)
class Narrowed:
    """A tensor as it travels: `tensor` * 2 ** `exponent`."""

    tensor: torch.Tensor
    exponent: int = 0

    def widened(self, dtype: torch.dtype) -> torch.Tensor:
        """As it is computed with."""
        if self.tensor.dtype == dtype:
            return self.tensor
        wide = self.tensor.to(dtype)
        return wide.mul_(math.ldexp(1.0, self.exponent)) if self.exponent else wide


def travelling_dtype(dtype: torch.dtype, wire_dtype: str | None) -> torch.dtype:
    """As which such elements travel in a job with this wire_dtype; others than float32 travel as they are."""
    narrow = WIRE_DTYPES.get(wire_dtype or "")
    return dtype if narrow is None or dtype != torch.float32 else narrow


def narrowed(tensor: torch.Tensor, wire_dtype: str | None) -> Narrowed:
    """The tensor as it travels in a job with this wire_dtype."""
    narrow = travelling_dtype(tensor.dtype, wire_dtype)
    if narrow == tensor.dtype:
        return Narrowed(tensor)
    largest = _largest(tensor)
    if _LARGEST[narrow] < largest < math.inf:
        largest = _LARGEST[narrow]
        tensor = tensor.clamp(-largest, largest)
    exponent = _exponent(largest) if narrow is torch.float16 else 0
    return Narrowed((tensor * math.ldexp(1.0, -exponent) if exponent else tensor).to(narrow), exponent)


def through_wire(tensor: torch.Tensor, wire_dtype: str | None) -> torch.Tensor:
    """What somebody else gets of this tensor: for sums that must have the same bits on both sides."""
    return narrowed(tensor, wire_dtype).widened(tensor.dtype)


def _largest(tensor: torch.Tensor) -> float:
    """Of its elements, without their signs; NaN where one is. Not a norm, which takes 17 times as long (torch 2.13, x86)."""
    if not tensor.numel():
        return 0.0
    ends = torch.aminmax(tensor)
    return max(-float(ends.min), float(ends.max))


def _exponent(largest: float) -> int:
    if not math.isfinite(largest) or largest == 0.0:
        return 0  # an infinity stays one: whoever gets it shall know
    fraction, power = math.frexp(largest)
    power += fraction >= _ROUNDS_TO_ONE
    return max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, power - _TOP_EXPONENT))
