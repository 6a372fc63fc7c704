"""Values cross a cut in the order in which their elements lie in memory.

A network gives a value back as a contiguous tensor. One that was laid out otherwise (channels last, as after a permute)
would be computed on by other kernels in the next stage than in the whole model, with other roundings and at another speed.
So it is permuted to its own memory's order before the cut, and back behind it. Both are views and cost nothing:

    layer 3:  norm [batch, height, width, channels] -> permute -> image [batch, channels, height, width], channels last
              image -> permute -> image_packed [batch, height, width, channels], contiguous
    ------------------------------------------- cut: image_packed ---------------------------------------------------
    layer 4:  image_packed -> permute -> image_layer_4 [batch, channels, height, width], channels last again -> conv
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .cutting import Cuts
from .lowering import LoweredGraph, RawNode
from .node import map_argument


def pack_cuts(graph: LoweredGraph, cuts: Cuts, outputs: Sequence[str]) -> tuple[Cuts, tuple[str, ...]]:
    """Adds the permutations to the graph; gives the cuts with the permuted values in the live sets, and the names of `outputs`,
    values that the model returns, as its last layer has them.
    """
    crossing = {name for names in cuts.live[1:] for name in names}
    packed = {node.name: node for node in graph.nodes if node.name in crossing and _is_permuted(node.value.order)}
    if not packed:
        return cuts, tuple(outputs)
    packing = _Packing(packed, cuts)
    for node in graph.nodes:
        packing.add(node)
    graph.outputs = packing.renamed(graph.outputs, cuts.layers - 1)
    returned = tuple(packing.renamed({"node": name}, cuts.layers - 1)["node"] for name in outputs)
    graph.nodes = packing.nodes_with_packs()
    live = tuple(tuple(f"{name}_packed" if name in packed else name for name in names) for names in cuts.live)
    return dataclasses.replace(cuts, layer_of=packing.layer_of, live=live), returned


class _Packing:
    """packed: the values to permute, by name. nodes: those added so far, each with what it reads renamed."""

    def __init__(self, packed: Mapping[str, RawNode], cuts: Cuts) -> None:
        self._packed = packed
        self.layer_of = dict(cuts.layer_of)
        self._nodes: list[RawNode] = []

    def add(self, node: RawNode) -> None:
        layer = self.layer_of[node.name]
        if layer is not None and any(name in self._packed for name in node.reads):
            args = self.renamed(node.args, layer)
            node = dataclasses.replace(
                node, args=args, kwargs={k: self.renamed(v, layer) for k, v in node.kwargs.items()}
            )
        self._nodes.append(node)

    def renamed(self, argument: Any, layer: int) -> Any:
        """The argument as a node of this layer reads it."""

        def rename(kind: str, content: Any) -> Any:
            return {kind: self._read_in(layer, content) if kind == "node" and content in self._packed else content}

        return map_argument(argument, rename)

    def _read_in(self, layer: int, name: str) -> str:
        if self.layer_of[name] == layer:
            return name
        own = f"{name}_layer_{layer}"
        if own not in self.layer_of:
            self.layer_of[own] = layer
            order = self._packed[name].value.order
            assert order is not None
            inverse = [order.index(dim) for dim in range(len(order))]
            self._nodes.append(_permuted(self._packed[name], f"{name}_packed", inverse, name=own))
        return own

    def nodes_with_packs(self) -> list[RawNode]:
        """All nodes, with the permutations of what leaves a layer at its end: after any change in place."""
        last = {self.layer_of[node.name]: index for index, node in enumerate(self._nodes)}
        added: dict[int, list[RawNode]] = {}
        for name, node in self._packed.items():
            assert node.value.order is not None
            layer = self.layer_of[name]
            packed = _permuted(node, name, node.value.order, name=f"{name}_packed")
            shape = tuple(node.value.shape[dim] for dim in node.value.order)
            packed.value = dataclasses.replace(node.value, shape=shape, order=None)
            self.layer_of[packed.name] = layer
            added.setdefault(last[layer], []).append(packed)
        return [node for index, kept in enumerate(self._nodes) for node in (kept, *added.get(index, ()))]


def _is_permuted(order: Sequence[int] | None) -> bool:
    return order is not None and list(order) != sorted(order)


def _permuted(node: RawNode, source: str, order: Sequence[int], *, name: str) -> RawNode:
    return RawNode(
        name=name,
        op="aten.permute.default",
        args=[{"node": source}, list(order)],
        kwargs={},
        value=node.value,
        module="",
        line="",
        mutates=(),
        views=(source,),
    )
