"""The same model in evaluation mode, cut where its training graph is cut, so that every stage can run its part of both.

The two graphs have other operations (no dropout, batch norms with running statistics), but a stage holds the tensors of its
training layers and no others. So the cuts of the training graph are made here at the places with the fewest bytes in all among
those that leave every layer without others' tensors:

    training    conv a | conv b  dropout | linear c
    evaluation  conv a | conv b          | linear c
                       ^ after the last use of a, before the first of b

A tensor that several layers hold (tied weights) may be used in each of them, and in none between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import EdgeswarmError, ErrorCode
from .cutting import Cuts, Places, cuts_at, places_of
from .export import export_and_cut
from .layer_graph import Layer, LayerGraph
from .lowering import LoweredGraph
from .node import map_argument, references

_PREFIX = "evaluation."


@dataclasses.dataclass(frozen=True)
class EvaluationGraph:
    """layer_graph: as many layers as the training graph, of which each uses tensors of its training layer, and constants.

    constants: what no training layer holds, under names that begin with `evaluation.`; they don't change.
    """

    layer_graph: LayerGraph
    constants: dict[str, torch.Tensor]


def export_evaluation(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: LayerGraph
) -> EvaluationGraph:
    """Exports the model in evaluation mode; its modules' modes are as before afterwards.

    args, kwargs: one batch, as for `export_model`. training: the graph of the same model in training mode.
    Raises EXPORT_FAILED, also where what is used at the beginning in training is used at the end in evaluation.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        graph, constants = export_and_cut(
            model, args, kwargs, cut_into_layers=partial(cut_alike, held=_held(training), names=_layer_names(training))
        )
    finally:
        for module, mode in modes:
            module.training = mode
    own = {**constants, **_unknown_to(training, graph, model)}
    layers = tuple(
        dataclasses.replace(layer, name=known.name) for layer, known in zip(graph.layers, training.layers, strict=True)
    )
    renamed = _renamed(dataclasses.replace(graph, layers=layers), own)
    pairs = zip(renamed.layers, _held(training), strict=True)
    assert all(held.issuperset((*layer.parameters, *layer.buffers)) for layer, held in pairs)
    return EvaluationGraph(renamed, {_PREFIX + name: tensor for name, tensor in own.items()})


def cut_alike(graph: LoweredGraph, held: Sequence[frozenset[str]], names: Sequence[str]) -> Cuts:
    """Cuts into as many layers as `held` has entries; layer i uses none of those tensors but held[i]'s.

    names: of the layers, for the message. Raises EXPORT_FAILED where there is no such place.
    """
    places = places_of(graph)
    known = frozenset().union(*held)
    used = [tensors & known for tensors in _used_at(graph, places)]
    # By the position of the cut so far: (bytes of all cuts, minus the sum of their positions), the least of each.
    costs: dict[int, tuple[int, int]] = {0: (0, 0)}
    cuts_before: list[dict[int, int]] = []
    for boundary in range(1, len(held)):
        # What must lie on one side of this cut: follows from the layers' tensors, and tells at which cut it can't be.
        before, after = frozenset().union(*held[:boundary]), frozenset().union(*held[boundary:])
        first = max((at + 1 for at, tensors in enumerate(used) if tensors - after), default=0)
        last = min((at for at, tensors in enumerate(used) if tensors - before), default=len(used))
        begins = _begins(used, held[boundary - 1], costs)
        fitting = [position for position in places.bytes_at if first <= position <= last and position in begins]
        if not fitting:
            raise _in_another_order(names, boundary)
        cuts_before.append({position: begins[position] for position in fitting})
        so_far = {position: costs[begins[position]] for position in fitting}
        costs = {
            position: (size + places.bytes_at[position], late - position) for position, (size, late) in so_far.items()
        }
    position = _begins(used, held[-1], costs).get(len(used))
    if position is None:
        raise _in_another_order(names, len(held) - 1)
    chosen = []
    for cut_before in reversed(cuts_before):
        chosen.append(position)
        position = cut_before[position]
    return cuts_at(graph, places, chosen[::-1])


def _begins(
    used: Sequence[frozenset[str]], held: frozenset[str], costs: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """By the position where a layer with these tensors ends, the cheapest one where it can begin, if there is any."""
    found: dict[int, int] = {}
    cheapest: int | None = None
    for position in range(len(used) + 1):
        if position and not used[position - 1] <= held:
            cheapest = None  # the node before is another layer's
        if position in costs and (cheapest is None or costs[position] <= costs[cheapest]):
            cheapest = position
        if cheapest is not None:
            found[position] = cheapest
    return found


def _in_another_order(names: Sequence[str], boundary: int) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.EXPORT_FAILED,
        f"In evaluation mode the model can't be cut between {names[boundary - 1]} and {names[boundary]}, "
        "where it is cut in training: it uses their weights in another order.",
        "Let forward() use its modules in the same order in both modes, or leave evaluation_dataset out.",
    )


def _used_at(graph: LoweredGraph, places: Places) -> list[frozenset[str]]:
    """For each node of a layer the tensors that it needs, by way of nodes without a layer too."""
    needs: dict[str, frozenset[str]] = {}
    changed: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        found = frozenset(references((node.args, node.kwargs), "tensor"))
        for name in node.reads:
            if name in needs and name not in places.dependent:
                found |= needs[name] | changed.get(name, frozenset())
        needs[node.name] = found
        for name in node.mutates:
            changed[name] = changed.get(name, frozenset()) | found
    return [needs[node.name] for node in places.nodes]


def _held(training: LayerGraph) -> list[frozenset[str]]:
    return [frozenset((*layer.parameters, *layer.buffers)) for layer in training.layers]


def _layer_names(training: LayerGraph) -> list[str]:
    return [layer.name for layer in training.layers]


def _unknown_to(training: LayerGraph, graph: LayerGraph, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that are used in evaluation alone: nothing trains them."""
    known = frozenset().union(*_held(training))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    used = {name for layer in graph.layers for name in (*layer.parameters, *layer.buffers)}
    return {name: tensors[name].detach().clone() for name in sorted(used - known)}


def _renamed(graph: LayerGraph, own: Mapping[str, torch.Tensor]) -> LayerGraph:
    """The graph with the constants of its own under names that the training graph's can't have."""

    def rename(kind: str, content: Any) -> Any:
        return {kind: _PREFIX + content if kind == "tensor" and content in own else content}

    def layer(old: Layer) -> Layer:
        used = (*old.parameters, *old.buffers, *old.constants)
        return dataclasses.replace(
            old,
            parameters=tuple(name for name in old.parameters if name not in own),
            buffers=tuple(name for name in old.buffers if name not in own),
            constants=tuple(_PREFIX + name for name in used if name in own),
        )

    specs = [
        dataclasses.replace(spec, name=_PREFIX + name, kind="constant", trainable=False, aliases=(), persistent=False)
        if name in own
        else spec
        for name, spec in graph.tensors.items()
    ]
    return dataclasses.replace(
        graph,
        layers=tuple(layer(old) for old in graph.layers),
        nodes=tuple(
            dataclasses.replace(
                node,
                args=tuple(map_argument(node.args, rename)),
                kwargs={key: map_argument(value, rename) for key, value in node.kwargs.items()},
            )
            for node in graph.nodes
        ),
        tensors={spec.name: spec for spec in specs},
    )
