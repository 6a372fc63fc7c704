"""What travels to a worker: one stage's part of the graph, as data, checked before anything is built from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from .checked_json import read_document, refuse
from .node import Node
from .structure import check_structure
from .values import BatchNorm, LiveValue, TensorSpec

FORMAT = "edgeswarm-stage-graph/1"
#: Tensors in a structure, before the number of the model's inputs and outputs is known.
MAXIMUM_VALUES = 10_000


@dataclasses.dataclass(frozen=True)
class StageGraph:
    """Layers first_layer to end_layer - 1 of a model.

    nodes: in the order in which they run; each one's `layer` is set and never falls.
    layer_tensors: by layer, original names of what it uses: the state that travels with it.
    inputs, outputs: the live sets before and after. tensors: each that the stage holds, in the model's order.
    output_structure: how the last stage's outputs make up what the model returns.
    """

    first_layer: int
    end_layer: int
    layer_names: tuple[str, ...]
    layer_tensors: tuple[tuple[str, ...], ...]
    nodes: tuple[Node, ...]
    inputs: tuple[LiveValue, ...]
    outputs: tuple[LiveValue, ...]
    tensors: tuple[TensorSpec, ...]
    batch_norms: tuple[BatchNorm, ...]
    is_last: bool
    training: bool
    input_structure: dict[str, Any]
    output_structure: dict[str, Any]

    @property
    def parameters(self) -> tuple[TensorSpec, ...]:
        return tuple(spec for spec in self.tensors if spec.kind == "parameter")

    @property
    def buffers(self) -> tuple[TensorSpec, ...]:
        return tuple(spec for spec in self.tensors if spec.kind == "buffer")

    @property
    def constants(self) -> tuple[TensorSpec, ...]:
        return tuple(spec for spec in self.tensors if spec.kind == "constant")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "first_layer": self.first_layer,
            "end_layer": self.end_layer,
            "layer_names": list(self.layer_names),
            "layer_tensors": [list(names) for names in self.layer_tensors],
            "nodes": [node.to_json() for node in self.nodes],
            "inputs": [value.to_json() for value in self.inputs],
            "outputs": [value.to_json() for value in self.outputs],
            "tensors": [spec.to_json() for spec in self.tensors],
            "batch_norms": [batch_norm.to_json() for batch_norm in self.batch_norms],
            "is_last": self.is_last,
            "training": self.training,
            "input_structure": self.input_structure,
            "output_structure": self.output_structure,
        }

    @classmethod
    def from_json(cls, document: object) -> StageGraph:
        """The stage in a JSON object or its text. Raises GRAPH_REFUSED for data that isn't a sound graph."""
        fields = read_document(document, what="the stage's graph", expected_format=FORMAT)
        graph = cls(
            first_layer=fields.integer("first_layer", minimum=0),
            end_layer=fields.integer("end_layer", minimum=1),
            layer_names=fields.texts("layer_names"),
            layer_tensors=fields.text_lists("layer_tensors"),
            nodes=fields.each("nodes", Node.from_json),
            inputs=fields.each("inputs", LiveValue.from_json),
            outputs=fields.each("outputs", LiveValue.from_json),
            tensors=fields.each("tensors", TensorSpec.from_json),
            batch_norms=fields.each("batch_norms", BatchNorm.from_json),
            is_last=fields.flag("is_last"),
            training=fields.flag("training"),
            input_structure=check_structure(fields.section("input_structure").values, MAXIMUM_VALUES),
            output_structure=check_structure(fields.section("output_structure").values, MAXIMUM_VALUES),
        )
        graph.validate()
        return graph

    def validate(self) -> None:
        """Raises GRAPH_REFUSED unless every name is defined once, before it is used, and layers run in order."""
        if self.end_layer - self.first_layer != len(self.layer_names):
            raise refuse(f"it has {len(self.layer_names)} names for layers {self.first_layer} to {self.end_layer}")
        known = _unique([value.name for value in self.inputs], "input")
        tensors = {spec.name: spec for spec in self.tensors}
        if len(self.layer_tensors) != len(self.layer_names) or set().union(*self.layer_tensors) != set(tensors):
            raise refuse("the tensors of its layers are not the tensors of the stage")
        _unique([spec.name for spec in self.tensors], "tensor")
        last_layer = self.first_layer
        for node in self.nodes:
            if node.layer is None or not last_layer <= node.layer < self.end_layer:
                raise refuse(f"the node {node.name!r} is of layer {node.layer}, out of order")
            last_layer = node.layer
            for name in (*node.reads, *node.after):
                if name not in known:
                    raise refuse(f"the node {node.name!r} reads {name[:60]!r}, which no earlier node or input makes")
            for name in node.tensors:
                if name not in tensors:
                    raise refuse(f"the node {node.name!r} uses the tensor {name[:60]!r}, which the stage doesn't list")
            if node.name in known:
                raise refuse(f"two values have the name {node.name!r}")
            known.add(node.name)
        for value in self.outputs:
            if value.name not in known:
                raise refuse(f"its output {value.name!r} is made by no node")
            if value.batch_dim < 0 and not self.is_last:
                raise refuse(f"its output {value.name!r} has no batch dimension")
        self._validate_batch_norms(tensors)
        check_structure(self.output_structure, len(self.outputs) if self.is_last else MAXIMUM_VALUES)
        check_structure(self.input_structure, len(self.inputs) if self.first_layer == 0 else MAXIMUM_VALUES)

    def _validate_batch_norms(self, tensors: dict[str, TensorSpec]) -> None:
        nodes = {node.name: node for node in self.nodes}
        for batch_norm in self.batch_norms:
            node = nodes.get(batch_norm.name)
            if node is None or node.op != "aten.batch_norm.default" or len(node.args) != 9:
                raise refuse(f"the batch norm {batch_norm.name!r} is not a batch normalisation of the graph")
            if node.args[3:5] != ({"tensor": batch_norm.running_mean}, {"tensor": batch_norm.running_var}):
                raise refuse(f"the batch norm {batch_norm.name!r} names other buffers than its node")
            for name in batch_norm.buffers:
                if name not in tensors or tensors[name].kind != "buffer":
                    raise refuse(f"the batch norm {batch_norm.name!r} keeps {name[:60]!r}, which is no buffer")
            if any(tensors[name].shape != (batch_norm.channels,) for name in batch_norm.buffers[:2]):
                raise refuse(f"the buffers of the batch norm {batch_norm.name!r} don't have a value for each channel")


def _unique(names: list[str], what: str) -> set[str]:
    if len(set(names)) != len(names):
        raise refuse(f"two of its {what}s have the same name")
    return set(names)
