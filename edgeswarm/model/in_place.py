"""Activations that write over what they are computed from, where nobody else reads that: same values, same gradients, bit by bit.

    conv ── c ──▶ batch norm ── n ──▶ relu6 ── a ──▶ conv          waits for the backward pass

    as networks are written     c for the norm, n for relu6, a for the next convolution      c n a
    in place                    c for the norm, a for both                                   c a

The gradient of such an activation can be told from its result as well as from its argument, and those who make the argument
don't need it any more. Of what MobileNetV2 holds 31 % goes; a new tensor, which no cache knows, is not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .node import Node
from .operators import packet_of, resolve, words

# Their gradients are masks: where the result is at a limit, the argument was at it or beyond.
_ACTIVATIONS = words("relu relu6 hardtanh leaky_relu")
# Their results are memory of their own, and their gradients don't ask for them.
_MAKERS = words("batch_norm native_group_norm group_norm conv1d conv2d conv3d add")
_NEGATIVE_SLOPE = 0.01


def in_place_forms(
    nodes: Sequence[Node], *, kept: frozenset[str], returned: frozenset[str] = frozenset()
) -> dict[str, Callable[..., torch.Tensor]]:
    """By name, what computes the same in place, for those of a layer's nodes that can have it.

    kept: values of the layer that are read behind it. returned: of the whole model's, into which a loss may write. None where the
    layer changes something in place by itself: that might be the activation's result, which its gradient asks for then.
    """
    if any(_is_in_place(node) for node in nodes):
        return {}
    readers = Counter(name for node in nodes for name in node.reads)
    makers = {node.name: packet_of(node.op) for node in nodes}
    found = {}
    for node in nodes:
        if packet_of(node.op) not in _ACTIVATIONS or node.name in returned or not _keeps_signs(node):
            continue
        if len(node.reads) == 1 and node.reads[0] not in kept:
            (read,) = node.reads
            if readers[read] == 1 and makers.get(read) in _MAKERS:
                found[node.name] = _in_place(node.op)
    return found


def _in_place(op: str) -> Callable[..., torch.Tensor]:
    namespace, packet, overload = op.split(".")
    if packet == "relu6":
        return _relu6
    return _hardtanh if packet == "hardtanh" else resolve(f"{namespace}.{packet}_.{overload}")


def _relu6(value: torch.Tensor) -> torch.Tensor:
    return _hardtanh(value, 0.0, 6.0)


def _hardtanh(value: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0) -> torch.Tensor:
    result: torch.Tensor = _Hardtanh.apply(value, min_val, max_val)  # type: ignore[no-untyped-call]
    return result


class _Hardtanh(torch.autograd.Function):
    """`hardtanh_`, which holds a copy of its argument for its gradient, without the copy."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, low: float, high: float) -> torch.Tensor:
        ctx.mark_dirty(torch.ops.aten.hardtanh_(value, low, high))
        ctx.save_for_backward(value)
        ctx.limits = low, high
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, result, *ctx.limits), None, None


def _is_in_place(node: Node) -> bool:
    packet = packet_of(node.op)
    return packet.endswith("_") and not packet.endswith("__")


def _keeps_signs(node: Node) -> bool:
    """Not a leaky one that turns the negative side over, whose argument can't be told from its result."""
    if packet_of(node.op) != "leaky_relu":
        return True
    slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", _NEGATIVE_SLOPE)
    return isinstance(slope, (int, float)) and slope >= 0
