"""What stands for whole numbers and truth values where a stage is timed and rehearsed with made-up inputs.

What a model does with them often allows for few numbers: an index into a table, a length of which 1 is taken away for another
index. So they are those of real samples: of whole numbers the largest, of words one that is no padding, of lengths that of a
whole text; of truth values the more frequent one, so that a mask leaves something.

    tokens, lengths --> [layer 0] -- lengths - 1 --> [layer 1]      what follows from a model's inputs alone is computed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .layer_graph import LayerGraph
from .node import Node, map_argument
from .operators import packet_of, resolve
from .values import LiveValue


def with_fillers(
    graph: LayerGraph, inputs: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> LayerGraph:
    """The graph, whose live values know what stands for them.

    inputs: of the whole graph, some samples. tensors: buffers and constants by original name; what needs others isn't computed.
    """
    wanted = {value.name for values in graph.cuts for value in values if not _is_float(value)}
    known = _following(graph, wanted, inputs, tensors)
    cuts = tuple(
        tuple(dataclasses.replace(value, filler=_filler(value, known.get(value.name))) for value in values)
        for values in graph.cuts
    )
    return dataclasses.replace(graph, cuts=cuts)


def _is_float(value: LiveValue) -> bool:
    dtype: torch.dtype = getattr(torch, value.dtype)
    return dtype.is_floating_point


def _filler(value: LiveValue, found: Any) -> int:
    """found: the value of some samples; None where it isn't known: then true, and 0, which is an index into every table."""
    is_bool = value.dtype == "bool"
    if _is_float(value):
        return 0
    if not isinstance(found, torch.Tensor) or not found.numel():
        return int(is_bool)
    return int(found.float().mean() >= 0.5) if is_bool else int(found.max())


def _following(
    graph: LayerGraph, wanted: set[str], inputs: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Of the wanted values those that follow from the inputs, by name."""
    real = {
        name: tensor for name, tensor in tensors.items() if not isinstance(tensor, FakeTensor) and not tensor.is_meta
    }
    values: dict[str, Any] = dict(inputs)
    follows = set(values)
    nodes: list[Node] = []
    for node in graph.nodes:
        changes = packet_of(node.op).endswith("_") or node.after  # somebody's sample
        if not changes and not node.is_random and follows.issuperset(node.reads) and real.keys() >= {*node.tensors}:
            follows.add(node.name)
            nodes.append(node)
    needed = wanted & follows
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.reads)
    batch = min((len(tensor) for tensor in inputs.values()), default=0)

    def place(kind: str, content: Any) -> Any:
        if kind == "node":
            return values[content]
        if kind == "tensor":
            return real[content].detach()
        if kind == "batch":
            multiple, extra = content
            return multiple * batch + extra
        if kind == "device":
            return torch.device("cpu")
        return float(content) if kind == "float" else getattr(torch, content)

    with torch.no_grad():
        for node in nodes:
            if node.name not in needed or not values.keys() >= {*node.reads}:
                continue
            try:
                args = map_argument(node.args, place)
                kwargs = {key: map_argument(value, place) for key, value in node.kwargs.items()}
                values[node.name] = resolve(node.op)(*args, **kwargs)
            except Exception:  # what a model can't do with its samples is told where the whole model is tried
                continue
    return {name: values[name] for name in wanted if name in values}
