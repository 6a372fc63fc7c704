"""The model as the planner sees it: layers, what crosses between them, and how to take a stage out.

    cuts[0]     cuts[1]     cuts[2]     cuts[3]
       | layer 0   | layer 1   | layer 2   |
     inputs                             outputs

Pure data: the coordinator plans with it without torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ..json_fields import Fields
from .checked_json import read_document, refuse
from .node import Node
from .stage_graph import MAXIMUM_VALUES, StageGraph
from .structure import check_structure
from .values import BatchNorm, LiveValue, TensorSpec

__all__ = ["BatchNorm", "Layer", "LayerGraph", "LiveValue", "Node", "StageGraph", "TensorSpec"]

FORMAT = "edgeswarm-layer-graph/1"


@dataclasses.dataclass(frozen=True)
class Layer:
    """The planner's unit: a run of graph nodes between two cuts.

    name: the user's module that it is. parameters, buffers, constants: original names of what it uses; tied weights
    stand in each layer that uses them. param_bytes, trainable_param_bytes: of those parameters.
    saved_bytes: bytes for one sample that wait for the backward pass; what several layers save counts in the first.
    held_input_bytes: for one sample, what a stage that begins with it keeps of its inputs, but for what is among saved_bytes.
    let_go_bytes: for one sample, what its forward makes and nothing keeps for the backward pass.
    waiting_bytes: for one sample, what is held for gradients of weights that come apart from its backward (later_weights.py).
    output_bytes: bytes for one sample that cross the cut after it. flops_forward, flops_backward: for one sample.
    signature: equal where the cost is equal. least_batch: the smallest share of samples that it can compute.
    """

    index: int
    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: tuple[str, ...]
    param_bytes: int
    trainable_param_bytes: int
    saved_bytes: int
    held_input_bytes: int
    let_go_bytes: int
    waiting_bytes: int
    output_bytes: int
    flops_forward: int
    flops_backward: int
    signature: str
    least_batch: int

    def to_json(self) -> dict[str, Any]:
        document = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in document.items()}

    @classmethod
    def from_json(cls, fields: Fields) -> Layer:
        return cls(
            index=fields.integer("index", minimum=0),
            name=fields.text("name"),
            parameters=fields.texts("parameters"),
            buffers=fields.texts("buffers"),
            constants=fields.texts("constants"),
            param_bytes=fields.integer("param_bytes", minimum=0),
            trainable_param_bytes=fields.integer("trainable_param_bytes", minimum=0),
            saved_bytes=fields.integer("saved_bytes", minimum=0),
            held_input_bytes=fields.integer("held_input_bytes", minimum=0),
            let_go_bytes=fields.integer("let_go_bytes", minimum=0),
            waiting_bytes=fields.integer("waiting_bytes", minimum=0),
            output_bytes=fields.integer("output_bytes", minimum=0),
            flops_forward=fields.integer("flops_forward", minimum=0),
            flops_backward=fields.integer("flops_backward", minimum=0),
            signature=fields.text("signature"),
            least_batch=fields.integer("least_batch", minimum=1),
        )


@dataclasses.dataclass(frozen=True)
class LayerGraph:
    """The exported model, cut into layers.

    nodes: the whole graph in its order; a node whose `layer` is None belongs to each stage that needs it.
    tensors: every parameter, buffer and constant of the model by original name, in the model's order.
    unused: names of those that no layer uses: they never leave the coordinator and keep their values.
    input_structure, output_structure: see structure.py. training: exported in training mode.
    """

    layers: tuple[Layer, ...]
    nodes: tuple[Node, ...]
    cuts: tuple[tuple[LiveValue, ...], ...]
    tensors: dict[str, TensorSpec]
    batch_norms: tuple[BatchNorm, ...]
    input_structure: dict[str, Any]
    output_structure: dict[str, Any]
    training: bool
    torch_version: str
    unused: tuple[str, ...] = ()

    @property
    def holders(self) -> dict[str, tuple[int, ...]]:
        """For each tensor that is used, the layers that use it: more than one for tied weights."""
        found: dict[str, list[int]] = {}
        for layer in self.layers:
            for name in (*layer.parameters, *layer.buffers, *layer.constants):
                found.setdefault(name, []).append(layer.index)
        return {name: tuple(layers) for name, layers in found.items()}

    @property
    def changing(self) -> frozenset[str]:
        """The tensors that training changes: parameters that are trained, and what the batch norms keep."""
        trained = (name for name, spec in self.tensors.items() if spec.trainable)
        return frozenset((*trained, *(name for norm in self.batch_norms for name in norm.buffers)))

    def names_held(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Original names of the tensors that a stage of these layers holds, in the model's order."""
        used: set[str] = set()
        for layer in self.layers[first_layer:end_layer]:
            used.update(layer.parameters, layer.buffers, layer.constants)
        return tuple(name for name in self.tensors if name in used)

    def least_batch(self, first_layer: int, end_layer: int) -> int:
        """The smallest share of samples that a stage of these layers can take."""
        return max(layer.least_batch for layer in self.layers[first_layer:end_layer])

    def stage(self, first_layer: int, end_layer: int) -> StageGraph:
        """The stage of layers first_layer to end_layer - 1. Raises ValueError for layers that aren't there."""
        if not 0 <= first_layer < end_layer <= len(self.layers):
            raise ValueError(f"layers {first_layer} to {end_layer} of a model with {len(self.layers)}")
        is_last = end_layer == len(self.layers)
        outputs = self.cuts[end_layer]
        nodes = select_nodes(self.nodes, first_layer, end_layer, [value.name for value in outputs])
        names = {node.name for node in nodes}
        return StageGraph(
            first_layer=first_layer,
            end_layer=end_layer,
            layer_names=tuple(layer.name for layer in self.layers[first_layer:end_layer]),
            layer_tensors=tuple(
                (*layer.parameters, *layer.buffers, *layer.constants) for layer in self.layers[first_layer:end_layer]
            ),
            nodes=nodes,
            inputs=self.cuts[first_layer],
            outputs=outputs,
            tensors=tuple(self.tensors[name] for name in self.names_held(first_layer, end_layer)),
            batch_norms=tuple(batch_norm for batch_norm in self.batch_norms if batch_norm.name in names),
            is_last=is_last,
            training=self.training,
            input_structure=self.input_structure,
            output_structure=self.output_structure,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "layers": [layer.to_json() for layer in self.layers],
            "nodes": [node.to_json() for node in self.nodes],
            "cuts": [[value.to_json() for value in cut] for cut in self.cuts],
            "tensors": [spec.to_json() for spec in self.tensors.values()],
            "batch_norms": [batch_norm.to_json() for batch_norm in self.batch_norms],
            "input_structure": self.input_structure,
            "output_structure": self.output_structure,
            "training": self.training,
            "torch_version": self.torch_version,
            "unused": list(self.unused),
        }

    @classmethod
    def from_json(cls, document: object) -> LayerGraph:
        """The graph in a JSON object or its text. Raises GRAPH_REFUSED for data that isn't a sound graph."""
        fields = read_document(document, what="the layer graph", expected_format=FORMAT)
        tensors = fields.each("tensors", TensorSpec.from_json)
        graph = cls(
            layers=fields.each("layers", Layer.from_json),
            nodes=fields.each("nodes", Node.from_json),
            cuts=fields.each_of_lists("cuts", LiveValue.from_json),
            tensors={spec.name: spec for spec in tensors},
            batch_norms=fields.each("batch_norms", BatchNorm.from_json),
            input_structure=check_structure(fields.section("input_structure").values, MAXIMUM_VALUES),
            output_structure=check_structure(fields.section("output_structure").values, MAXIMUM_VALUES),
            training=fields.flag("training"),
            torch_version=fields.text("torch_version"),
            unused=fields.texts("unused"),
        )
        graph.validate()
        return graph

    def validate(self) -> None:
        """Raises GRAPH_REFUSED unless every layer, taken alone, is a sound stage."""
        if not self.layers or len(self.cuts) != len(self.layers) + 1:
            raise refuse(f"it has {len(self.layers)} layers and {len(self.cuts)} cuts")
        for index, layer in enumerate(self.layers):
            if layer.index != index:
                raise refuse(f"layer {index} says that it is layer {layer.index}")
            for name in (*layer.parameters, *layer.buffers, *layer.constants):
                if name not in self.tensors:
                    raise refuse(f"layer {index} uses the tensor {name[:60]!r}, which the model doesn't list")
        for name in self.unused:
            if name not in self.tensors:
                raise refuse(f"the unused tensor {name[:60]!r} is not the model's")
        for index in range(len(self.layers)):
            self.stage(index, index + 1).validate()


def select_nodes(nodes: Iterable[Node], first_layer: int, end_layer: int, outputs: Iterable[str]) -> tuple[Node, ...]:
    """The nodes of these layers with what they compute anew, in the order in which they run.

    A node without a layer gets the first layer that needs it. `outputs`: names that must be there at the end.
    """
    ordered = list(nodes)
    position = {node.name: index for index, node in enumerate(ordered)}
    layer_of: dict[str, int] = {}
    wanted: list[tuple[str, int]] = [
        (node.name, node.layer) for node in ordered if node.layer is not None and first_layer <= node.layer < end_layer
    ]
    wanted += [(name, end_layer - 1) for name in outputs if name in position and ordered[position[name]].layer is None]
    while wanted:
        name, layer = wanted.pop()
        if layer_of.get(name, end_layer) <= layer:
            continue
        layer_of[name] = layer
        node = ordered[position[name]]
        for source in (*node.reads, *node.after):
            if source in position and ordered[position[source]].layer is None:
                wanted.append((source, layer))
    chosen = sorted(layer_of, key=lambda name: (layer_of[name], position[name]))
    return tuple(dataclasses.replace(ordered[position[name]], layer=layer_of[name]) for name in chosen)
