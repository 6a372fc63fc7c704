"""A layer's signature: layers that compute the same, on the same shapes, have the same one, and so the same cost."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .node import map_argument
from .stage_graph import StageGraph


def signature(stage_graph: StageGraph) -> str:
    """16 hexadecimal digits over operations, arguments, and shapes and dtypes of inputs and tensors.

    Neither names matter, nor the order of the live set, nor what only passes through to a later layer.
    """
    numbers: dict[str, int] = {}
    inputs = {
        value.name: [value.dtype, value.shape, value.batch_dim, value.requires_grad] for value in stage_graph.inputs
    }
    read: list[list[Any]] = []
    tensors = {spec.name: [spec.dtype, spec.shape, spec.kind, spec.trainable] for spec in stage_graph.tensors}
    seen: dict[str, int] = {}

    def anonymous(kind: str, content: Any) -> Any:
        if kind == "node":
            if content not in numbers:
                numbers[content] = len(numbers)
                read.append([numbers[content], inputs[content]])
            return {"node": numbers[content]}
        if kind == "tensor":
            return {"tensor": [seen.setdefault(content, len(seen)), tensors[content]]}
        return {kind: content}

    nodes = []
    for node in stage_graph.nodes:
        kwargs = {key: map_argument(value, anonymous) for key, value in sorted(node.kwargs.items())}
        nodes.append([node.op, map_argument(node.args, anonymous), kwargs])
        numbers[node.name] = len(numbers)
    outputs = sorted(numbers[value.name] for value in stage_graph.outputs if value.name in numbers)
    text = json.dumps([read, nodes, outputs, stage_graph.training], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
