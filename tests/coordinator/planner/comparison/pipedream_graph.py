"""Reads PipeDream's `graph.txt` profiles: a model as a graph of layers, and its states, the antichains of that graph.

A state is a set of layers of which none comes before another, and stands for these layers with all that come before
them. One follows another by replacing a layer with one behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from edgeswarm_coordinator.planner.comparison.pipedream_program import ModelStates

NUMBER = r"=(\[[^\]]*\]|[^,\]]+)"


@dataclass(frozen=True)
class Layer:
    """seconds: forward and backward. Bytes of one mini-batch."""

    name: str
    what: str
    seconds: float
    activation_bytes: float
    parameter_bytes: float


@dataclass
class LayerGraph:
    """Layers by name; behind, ahead: the neighbours of each by name."""

    layers: dict[str, Layer]
    behind: dict[str, list[str]]
    ahead: dict[str, list[str]]
    _ancestors: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> LayerGraph:
        """Without the layers that only load data, and without parts of an output that nobody takes."""
        graph = cls({}, {}, {})
        for line in text.strip().split("\n"):
            parts = line.strip().split(" -- ")
            if line.startswith("\t"):
                graph.behind[parts[0]].append(parts[1])
                graph.ahead[parts[1]].append(parts[0])
            else:
                graph.layers[parts[0]] = _layer(parts[0], parts[1], parts[2])
                graph.behind[parts[0]], graph.ahead[parts[0]] = [], []
        for name in [name for name in graph.layers if not graph.ahead[name]]:
            if graph.layers[name].what.startswith("Input"):
                graph.remove(name)
        for name in [name for name in graph.layers if not graph.behind[name]]:
            if graph.layers[name].what.startswith("__getitem__"):
                graph.remove(name)
        return graph

    def remove(self, name: str) -> None:
        for other in self.behind.pop(name):
            self.ahead[other].remove(name)
        for other in self.ahead.pop(name):
            self.behind[other].remove(name)
        del self.layers[name]

    def ancestors(self, name: str) -> frozenset[str]:
        if name not in self._ancestors:
            of_all = (self.ancestors(before) | {before} for before in self.ahead[name])
            self._ancestors[name] = frozenset().union(*of_all)
        return self._ancestors[name]

    def with_ancestors(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self.ancestors(name) | {name} for name in names))

    def open_layers(self, antichain: tuple[str, ...]) -> list[str]:
        """The layers whose output crosses the cut: ancestors with a successor outside, then the antichain's own."""
        crossing = {
            before
            for name in antichain
            for before in self.ancestors(name)
            if any(after != name and after not in self.ancestors(name) for after in self.behind[before])
        }
        return [*sorted(crossing - set(antichain)), *antichain]

    def following(self, antichain: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The antichains one step further."""
        found = []
        crossing = self.open_layers(antichain)
        for name in crossing:
            for after in self.behind[name]:
                if after in antichain or any(after in self.ancestors(other) for other in crossing):
                    continue
                found.append(self._maximal([after if other == name else other for other in crossing]))
        return found

    def _maximal(self, names: list[str]) -> tuple[str, ...]:
        unique = dict.fromkeys(names)
        return tuple(name for name in unique if not any(name in self.ancestors(other) for other in unique))

    @cached_property
    def antichains(self) -> tuple[list[tuple[str, ...]], dict[frozenset[str], list[frozenset[str]]]]:
        """All antichains from the first layer on, in topological order, and which follow which."""
        start: tuple[str, ...] = (next(name for name in self.layers if not self.ahead[name]),)
        members = {frozenset(start): start}
        edges: dict[frozenset[str], list[frozenset[str]]] = {}
        waiting = [start]
        while waiting:
            antichain = waiting.pop(0)
            key = frozenset(antichain)
            if key in edges:
                continue
            edges[key] = []
            for after in self.following(antichain):
                members.setdefault(frozenset(after), after)
                edges[key].append(frozenset(after))
                waiting.append(after)
        order: list[frozenset[str]] = []
        seen: set[frozenset[str]] = set()

        def visit(key: frozenset[str]) -> None:
            if key not in seen:
                seen.add(key)
                for after in edges[key]:
                    visit(after)
                order.append(key)

        visit(frozenset(start))
        return [members[key] for key in reversed(order)], edges

    def states(self) -> ModelStates:
        antichains, edges = self.antichains
        place = {frozenset(antichain): number for number, antichain in enumerate(antichains)}
        before = np.zeros((len(antichains), len(antichains)), dtype=bool)
        for key, number in place.items():
            for after in edges[key]:
                before[place[after], : number + 1] |= before[number, : number + 1]
                before[place[after], number] = True
        sets = [[layer for name, layer in self.layers.items() if name in self.with_ancestors(a)] for a in antichains]
        outputs = [sum(self.layers[name].activation_bytes for name in self.open_layers(a)) for a in antichains]
        return ModelStates(
            np.array([sum(layer.seconds for layer in layers) for layers in sets]),
            np.array([sum(layer.parameter_bytes for layer in layers) for layers in sets]),
            np.array([sum(layer.activation_bytes for layer in layers) for layers in sets]),
            np.array(outputs),
            before,
        )


def _layer(name: str, what: str, figures: str) -> Layer:
    def of(field_name: str) -> float:
        match = re.search(field_name + NUMBER, figures)
        assert match is not None, f"{name}: no {field_name}"
        return sum(float(value) for value in match[1].strip("[]").split(";"))

    return Layer(
        name,
        what,
        seconds=(of("forward_compute_time") + of("backward_compute_time")) / 1000,
        activation_bytes=of("activation_size"),
        parameter_bytes=of("parameter_size"),
    )
