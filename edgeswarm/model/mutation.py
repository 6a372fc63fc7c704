"""Operations that change a value in place: which values share memory, and which such operations must become plain ones.

A cut between the making of a value and its change in place would have the next stage change what it received, which autograd
forbids. So they stay in one layer; where that would glue real layers together (`x += block(x)` all through a model),
the operation is replaced by its plain form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ..errors import EdgeswarmError, ErrorCode
from . import operators
from .lowering import LoweredGraph, RawNode
from .node import map_argument, references


class SharedMemory:
    """Which values may share memory: a union-find over names."""

    def __init__(self, nodes: Iterable[RawNode]) -> None:
        self._parent: dict[str, str] = {}
        self._mutated: set[str] = set()
        nodes = list(nodes)
        for node in nodes:
            for name in (*node.views, *node.mutates):
                self._parent[self.of(node.name)] = self.of(name)
        self._mutated = {self.of(name) for node in nodes for name in node.mutates}

    def of(self, name: str) -> str:
        """A name for the memory that this value lives in."""
        while self._parent.get(name, name) != name:
            name = self._parent[name]
        return name

    def is_mutated(self, name: str) -> bool:
        return self.of(name) in self._mutated


def settle_mutations(graph: LoweredGraph) -> None:
    """Changes the graph so that each change in place can stay within one layer.

    Raises EXPORT_FAILED for a model that changes its parameters or buffers in forward.
    """
    _drop_unused(graph)
    _refuse_changed_tensors(graph)
    _copy_changed_inputs(graph)
    for index in reversed(range(len(graph.nodes))):
        if graph.nodes[index].mutates:
            _make_plain(graph, index)


def _drop_unused(graph: LoweredGraph) -> None:
    memory = SharedMemory(graph.nodes)
    needed = set(references(graph.outputs, "node"))
    needed_memory: set[str] = set()
    of_tensors = _memory_of_tensors(graph, memory)
    before = -1
    while before != len(needed):  # a change in place is needed where anything of the same memory is
        before = len(needed)
        needed_memory = {memory.of(name) for name in needed}
        for node in reversed(graph.nodes):
            keeps_statistics = node.op == "aten.batch_norm.default" and node.args[3] is not None and node.args[5]
            changes_needed = any(memory.of(name) in needed_memory | of_tensors.keys() for name in node.mutates)
            if node.name in needed or keeps_statistics or changes_needed:
                needed.add(node.name)
                needed.update(node.reads)
    graph.nodes = [node for node in graph.nodes if node.name in needed]


def _memory_of_tensors(graph: LoweredGraph, memory: SharedMemory) -> dict[str, str]:
    """The names of parameters, buffers and constants by the memory that they share with values of the graph."""
    names = [name for node in graph.nodes for name in (*node.views, *node.mutates)]
    return {memory.of(name): name.removeprefix("tensor:") for name in names if name.startswith("tensor:")}


def _refuse_changed_tensors(graph: LoweredGraph) -> None:
    memory = SharedMemory(graph.nodes)
    of_tensors = _memory_of_tensors(graph, memory)
    for node in graph.nodes:
        for name in node.mutates:
            if memory.of(name) in of_tensors:
                raise EdgeswarmError(
                    ErrorCode.EXPORT_FAILED,
                    f"The model changes {of_tensors[memory.of(name)]!r} in its forward{node.line}.",
                    "Only batch normalisation's running statistics may change there: keep such state outside of the model.",
                )
        if node.op == "aten.instance_norm.default" and node.args[3] is not None and node.args[5]:
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model keeps running statistics of an instance normalisation{node.line}.",
                "Make it with track_running_stats=False.",
            )


def _copy_changed_inputs(graph: LoweredGraph) -> None:
    memory = SharedMemory(graph.nodes)
    copies = {name: f"{name}_copy" for name, _ in graph.inputs if memory.is_mutated(name)}
    if not copies:
        return

    def rename(kind: str, content: Any) -> Any:
        return {kind: copies.get(content, content) if kind == "node" else content}

    for node in graph.nodes:
        node.args = map_argument(node.args, rename)
        node.kwargs = {key: map_argument(value, rename) for key, value in node.kwargs.items()}
        node.mutates = tuple(copies.get(name, name) for name in node.mutates)
        node.views = tuple(copies.get(name, name) for name in node.views)
    graph.outputs = map_argument(graph.outputs, rename)
    types = dict(graph.inputs)
    graph.nodes[:0] = [
        RawNode(
            name=copy,
            op="aten.clone.default",
            args=[{"node": name}],
            kwargs={},
            value=types[name],
            module="",
            line="",
            mutates=(),
            views=(),
        )
        for name, copy in copies.items()
    ]


def _make_plain(graph: LoweredGraph, index: int) -> None:
    """Replaces a change in place by the plain operation where heavy work lies between and nobody sees the difference."""
    node = graph.nodes[index]
    memory = SharedMemory(graph.nodes)
    if len(node.mutates) != 1 or not isinstance(node.args[0], dict):
        return
    shared = memory.of(node.mutates[0])
    members = [place for place, other in enumerate(graph.nodes) if memory.of(other.name) == shared]
    between = graph.nodes[members[0] + 1 : index]
    if not any(operators.packet_of(other.op) in operators.HEAVY_PACKETS for other in between):
        return
    older = {graph.nodes[place].name for place in members if place < index}
    read_later = {name for other in graph.nodes[index + 1 :] for name in other.reads}
    read_later.update(references(graph.outputs, "node"))
    dtypes = {other.value.dtype for other in graph.nodes if other.name in node.reads}
    dtypes |= {value.dtype for name, value in graph.inputs if name in node.reads}
    _, packet, overload = node.op.split(".")
    plain = f"aten.{packet.removesuffix('_')}.{overload}"
    # Beside the model's own tensors, whose types aren't looked at here, or as a comparison, it might give another type.
    of_tensors = any(references((node.args, node.kwargs), "tensor"))
    compares = packet.removesuffix("_") in operators.COMPARING_PACKETS and node.value.dtype != "bool"
    if (
        older & read_later
        or dtypes != {node.value.dtype}
        or of_tensors
        or compares
        or not packet.endswith("_")
        or not operators.is_allowed(plain)
    ):
        return
    if packet in ("copy_", "set_", "resize_") or not _exists(plain):
        return
    graph.nodes[index] = dataclasses.replace(node, op=plain, mutates=(), views=())


def _exists(op: str) -> bool:
    try:
        operators.resolve(op)
    except EdgeswarmError:
        return False
    return True
