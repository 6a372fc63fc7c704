"""Where a model may be cut, and where it is: runs of nodes become layers.

A cut is allowed where all that crosses it are tensors with one dimension that is the batch. What depends on no input (masks made
from sizes, functions of parameters alone) doesn't cross: each stage computes it. Between two heavy operations (a convolution, a
matrix product) the cut with the fewest bytes is taken:

    conv  batch_norm  relu  max_pool  |  conv  batch_norm  relu  |  linear
                                      ^ fewest bytes             ^

and a cut that costs several times what cuts nearby cost (inside a block that widens and narrows) is dropped again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..wire.frames import MAX_DIMENSIONS
from . import operators
from .lowering import BATCH, LoweredGraph, RawNode, ValueType
from .mutation import SharedMemory
from .node import references
from .values import BYTES_PER_ELEMENT

#: Dear cuts stay where fewer layers than these would be left: a pipeline needs places to cut.
_FEW_LAYERS = 12
_MANY_LAYERS = 60
#: A cut is dear when it costs this many times the cheapest cut shortly before and shortly after it.
_DEAR = 3.0
_NEARBY = 3


@dataclasses.dataclass(frozen=True)
class Cuts:
    """layer_of: for each node by name, None for those without a layer. layers: how many there are.

    live: names that cross, from the inputs to those before the last layer.
    after: for a node, the changes in place of values without a layer that it must see.
    """

    layer_of: dict[str, int | None]
    live: tuple[tuple[str, ...], ...]
    after: dict[str, tuple[str, ...]]
    layers: int


@dataclasses.dataclass(frozen=True)
class Places:
    """Where a graph may be cut.

    nodes: those that belong to a layer, in order; a place is a position before one of them. live: names that cross at each
    position. bytes_at: the allowed positions, with the bytes that cross there for one sample. dependent: names of `nodes`.
    """

    nodes: list[RawNode]
    live: list[tuple[str, ...]]
    bytes_at: dict[int, int]
    dependent: set[str]


def cut(graph: LoweredGraph) -> Cuts:
    """Cuts the graph into layers."""
    places = places_of(graph)
    chosen = _drop_dear(_between_heavy(places.nodes, places.bytes_at), places.bytes_at)
    return cuts_at(graph, places, chosen)


def places_of(graph: LoweredGraph) -> Places:
    """Every place at which the graph may be cut."""
    memory = SharedMemory(graph.nodes)
    dependent = _dependent(graph, memory)
    nodes = [node for node in graph.nodes if node.name in dependent]
    live = _live_sets(graph, nodes)
    types = {**dict(graph.inputs), **{node.name: node.value for node in graph.nodes}}
    glued = _glued(nodes, memory)
    bytes_at = {
        position: sum(_bytes(types[name]) for name in names)
        for position, names in enumerate(live)
        if 0 < position < len(nodes) and position not in glued and all(_may_cross(types[name]) for name in names)
    }
    return Places(nodes, live, bytes_at, dependent)


def cuts_at(graph: LoweredGraph, places: Places, chosen: Sequence[int]) -> Cuts:
    """The cuts at these positions, ascending; twice the same makes a layer without nodes between them."""
    layer_of: dict[str, int | None] = {node.name: None for node in graph.nodes}
    for position, node in enumerate(places.nodes):
        layer_of[node.name] = sum(1 for place in chosen if place <= position)
    inputs = tuple(name for name, _ in graph.inputs)
    return Cuts(
        layer_of=layer_of,
        live=(inputs, *(places.live[position] for position in chosen)),
        after=_changes_before(graph.nodes, places.dependent, SharedMemory(graph.nodes)),
        layers=len(chosen) + 1,
    )


def _dependent(graph: LoweredGraph, memory: SharedMemory) -> set[str]:
    """Names of the nodes whose value depends on an input or on a random number."""
    found = {name for name, _ in graph.inputs}
    shared: set[str] = set()
    before = -1
    while before != len(found):
        before = len(found)
        for node in graph.nodes:
            random = operators.is_random(node.op, node.args, node.kwargs)
            if random or memory.of(node.name) in shared or any(name in found for name in node.reads):
                found.add(node.name)
                if node.mutates:
                    shared.update(memory.of(name) for name in node.mutates)
    return found - {name for name, _ in graph.inputs}


def _live_sets(graph: LoweredGraph, nodes: list[RawNode]) -> list[tuple[str, ...]]:
    """For each position, the values made before it and read at it or later; the position after the last node is the outputs'."""
    last_use: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in node.reads:
            last_use[name] = position
    for name in references(graph.outputs, "node"):
        last_use[name] = len(nodes)
    made = [name for name, _ in graph.inputs]
    order = made + [node.name for node in nodes]
    born = {name: max(0, index - len(made) + 1) for index, name in enumerate(order)}
    return [
        tuple(name for name in order if born[name] <= position <= last_use.get(name, -1))
        for position in range(len(nodes) + 1)
    ]


def _may_cross(value: ValueType) -> bool:
    return (
        value.dtype in BYTES_PER_ELEMENT
        and value.shape.count(BATCH) == 1
        and all(size is not None for size in value.shape)
        and len(value.shape) <= MAX_DIMENSIONS
    )


def _bytes(value: ValueType) -> int:
    if value.dtype not in BYTES_PER_ELEMENT:
        return 0
    return BYTES_PER_ELEMENT[value.dtype] * math.prod(size for size in value.shape if size is not None and size >= 0)


def _glued(nodes: list[RawNode], memory: SharedMemory) -> set[int]:
    """Positions between a value's making and its change in place, and between uses of one batch norm's statistics."""
    first: dict[str, int] = {}
    glued: set[int] = set()
    for position, node in enumerate(nodes):
        first.setdefault(memory.of(node.name), position)
        for name in node.mutates:
            glued.update(range(first[memory.of(name)] + 1, position + 1))
        if is_counting_batch_norm(node):
            kept = f"statistics:{node.args[3]['tensor']}"
            glued.update(range(first.setdefault(kept, position) + 1, position + 1))
    return glued


def is_counting_batch_norm(node: RawNode) -> bool:
    """Whether the node is a batch norm in training mode that keeps running statistics, and doesn't compute them (MAML)."""
    statistics = node.args[3] if node.op == "aten.batch_norm.default" and node.args[5] else None
    return isinstance(statistics, dict) and "tensor" in statistics


def _between_heavy(nodes: list[RawNode], allowed: dict[int, int]) -> list[int]:
    heavy = [position for position, node in enumerate(nodes) if operators.packet_of(node.op) in operators.HEAVY_PACKETS]
    chosen = []
    start = heavy[0] if heavy else len(nodes)
    for end in heavy[1:]:
        places = [position for position in range(start + 1, end + 1) if position in allowed]
        if places:
            chosen.append(min(places, key=lambda position: (allowed[position], -position)))
        start = end
    return chosen


def _drop_dear(chosen: list[int], cost: dict[int, int]) -> list[int]:
    """Drops the dearest cuts, equally dear ones together, so that repeated blocks stay alike."""
    chosen = list(chosen)
    while chosen:
        costs = [cost[position] for position in chosen]
        ratios = [_dearness(costs, index) for index in range(len(chosen))]
        worst = max(ratios)
        kept = [position for position, ratio in zip(chosen, ratios, strict=True) if ratio < worst]
        if len(chosen) + 1 > _MANY_LAYERS:
            chosen = kept if len(kept) + 1 >= _FEW_LAYERS else _thinned(chosen, kept)
        elif worst < _DEAR or len(kept) + 1 < _FEW_LAYERS:
            break
        else:
            chosen = kept
    return chosen


def _thinned(chosen: list[int], kept: list[int]) -> list[int]:
    """As many cuts as there may be: those of `kept`, and of the others, which are equally dear, some at equal distances."""
    others = sorted({*chosen} - {*kept})
    wanted = _MANY_LAYERS - 1 - len(kept)
    return sorted([*kept, *(others[place * len(others) // wanted] for place in range(wanted))])


def _dearness(costs: list[int], index: int) -> float:
    before = costs[max(0, index - _NEARBY) : index]
    after = costs[index + 1 : index + 1 + _NEARBY]
    if not before or not after:
        return 0.0
    return costs[index] / max(1, min(before), min(after))


def _changes_before(nodes: list[RawNode], dependent: set[str], memory: SharedMemory) -> dict[str, tuple[str, ...]]:
    changes: dict[str, list[str]] = {}
    found = {}
    for node in nodes:
        seen = [change for name in node.reads for change in changes.get(memory.of(name), ())]
        if seen:
            found[node.name] = tuple(dict.fromkeys(seen))
        if node.name not in dependent:
            for name in node.mutates:
                changes.setdefault(memory.of(name), []).append(node.name)
    return found
