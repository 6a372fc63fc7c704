"""How images lie in memory while a stage computes: channel by channel, as networks give them, or pixel by pixel.

    [batch, channels, height, width]     strides of (C H W, H W, W, 1)     as it is written
                                         strides of (C H W, 1, W C, C)     channels last: same values, same shape

PyTorch's convolutions on x86 processors want the latter and turn each input and output over where they get the former: a
training step of MobileNetV2 takes half the time without that, one of ResNet-50 two thirds (docs/benchmarks.md). What a
convolution, a batch norm or an activation makes lies as what it was made from; a stage arranges its inputs, and the rest follows.

A `view` can be impossible then, and becomes a `reshape`, which copies. Where something is changed in place behind one, or an
operation names strides, the graph stays as it is: a copy would miss the change.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import torch

from . import operators
from .operators import packet_of, resolve, words
from .small_images import convolve as convolve_small
from .stage_graph import StageGraph

_CONVOLUTIONS = words("conv2d convolution _convolution")
_NAMES_STRIDES = words(
    "_reshape_alias sym_stride sym_storage_offset empty_strided new_empty_strided view_as_complex view_as_real"
)
# A view of one layout, a copy of the other one.
_RESHAPES = words("view view_as _unsafe_view reshape reshape_as flatten unflatten ravel contiguous")
_FREE_FORM = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    "aten.view_as.default": "aten.reshape_as.default",
}


def wants_channels_last(graph: StageGraph, device: torch.device) -> bool:
    """Whether the stage computes faster that way there, and as rightly: float32 images, on an x86 processor."""
    return _is_faster_on(device) and _convolves(graph) and not _depends_on_layout(graph)


def arranged(tensor: torch.Tensor) -> torch.Tensor:
    """The same image, or weights of a convolution, channels last; any other tensor as it is."""
    if tensor.dim() == 4 and tensor.dtype == torch.float32:
        # Not `contiguous`: of one pixel or one channel any strides are, but kernels are chosen by them.
        return tensor.to(memory_format=torch.channels_last)
    return tensor


@functools.cache
def resolve_for_any_layout(op: str) -> Callable[..., Any]:
    """`resolve` for a stage whose images are channels last. Raises GRAPH_REFUSED likewise."""
    if packet_of(op) not in _CONVOLUTIONS:
        return resolve(_FREE_FORM.get(op, op))
    convolution = convolve_small if packet_of(op) == "conv2d" else resolve(op)

    def convolve(image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """What was made of something else, of tokens say, is arranged here."""
        found: torch.Tensor = convolution(arranged(image), *args, **kwargs)
        return found

    return convolve


def _is_faster_on(device: torch.device) -> bool:
    # Measured there alone; graphics cards and ARM have kernels of their own.
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and is_x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _convolves(graph: StageGraph) -> bool:
    return any(packet_of(node.op) in _CONVOLUTIONS for node in graph.nodes)


def _depends_on_layout(graph: StageGraph) -> bool:
    last_read = {name: index for index, node in enumerate(graph.nodes) for name in node.reads}
    last_read |= {value.name: len(graph.nodes) for value in graph.outputs}
    sharing: dict[str, list[str]] = {}  # by value, all that may share its memory
    reshaped: set[str] = set()  # of these, what would be a copy in another layout
    for index, node in enumerate(graph.nodes):
        packet = packet_of(node.op)
        if packet in _NAMES_STRIDES or node.op == "aten.view.dtype":
            return True
        is_change = packet.endswith("_") and not packet.startswith("__")
        if not node.reads or not (is_change or packet in operators.SHAPE_PACKETS or node.op == "operator.getitem"):
            continue
        changed = node.reads[0]
        group = sharing.setdefault(changed, [changed])
        if is_change and reshaped.intersection(group):
            others = (name for name in group if name != changed)
            if any(last_read.get(name, -1) > index for name in others):
                return True  # it wants to see the change
        if packet in _RESHAPES:
            reshaped.add(node.name)
        group.append(node.name)
        sharing[node.name] = group
    return False
