"""The last step of an export: lowered nodes and cuts become a LayerGraph (costs are filled in later)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import EdgeswarmError, ErrorCode
from . import operators
from .cutting import Cuts, cut, is_counting_batch_norm
from .layer_graph import Layer, LayerGraph, select_nodes
from .lowering import BATCH, LoweredGraph, RawNode, ValueType
from .node import Node
from .packing import pack_cuts
from .structure import describe
from .values import BYTES_PER_ELEMENT, BatchNorm, LiveValue, TensorSpec


def assemble(
    lowered: LoweredGraph,
    *,
    tensors: dict[str, TensorSpec],
    momenta: Mapping[str, float | None],
    input_structure: dict[str, Any],
    returned: Any,
    leaf_index: Callable[[Any], int],
    training: bool,
    torch_version: str,
    cut_into_layers: Callable[[LoweredGraph], Cuts] = cut,
) -> LayerGraph:
    """Builds the LayerGraph.

    momenta: by the path of the batch norm module. returned: what the model returns, with a leaf in place of each tensor or
    number; leaf_index gives its place in lowered.outputs.
    """
    outputs, output_structure = _outputs(lowered, tensors, returned, leaf_index)
    cuts, outputs = pack_cuts(lowered, cut_into_layers(lowered), outputs)
    types = {**dict(lowered.inputs), **{node.name: node.value for node in lowered.nodes}}
    nodes = tuple(
        Node(
            name=raw.name,
            op=raw.op,
            args=tuple(raw.args),
            kwargs=raw.kwargs,
            layer=cuts.layer_of[raw.name],
            after=cuts.after.get(raw.name, ()),
        )
        for raw in lowered.nodes
    )
    inputs = {name for name, _ in lowered.inputs}
    live = [
        tuple(_live_value(name, types[name], is_input=name in inputs) for name in names)
        for names in (*cuts.live, outputs)
    ]
    batch_norms = tuple(
        _batch_norm(node, types, tensors, momenta) for node in lowered.nodes if is_counting_batch_norm(node)
    )
    names = _layer_names(lowered.nodes, cuts)
    layers = []
    for index in range(cuts.layers):
        own = select_nodes(nodes, index, index + 1, [value.name for value in live[index + 1]])
        own_names = {node.name for node in own}
        used = {name for node in own for name in node.tensors}
        used.update(name for norm in batch_norms if norm.name in own_names for name in norm.buffers)
        specs = [spec for name, spec in tensors.items() if name in used]
        layers.append(
            Layer(
                index=index,
                name=names[index],
                parameters=tuple(spec.name for spec in specs if spec.kind == "parameter"),
                buffers=tuple(spec.name for spec in specs if spec.kind == "buffer"),
                constants=tuple(spec.name for spec in specs if spec.kind == "constant"),
                param_bytes=sum(spec.bytes for spec in specs if spec.kind == "parameter"),
                trainable_param_bytes=sum(spec.bytes for spec in specs if spec.trainable),
                saved_bytes=0,
                held_input_bytes=0,
                let_go_bytes=0,
                waiting_bytes=0,
                output_bytes=sum(value.bytes_per_sample for value in live[index + 1]),
                flops_forward=0,
                flops_backward=0,
                signature="",
                least_batch=max(
                    (_least_batch(raw, types) for raw in lowered.nodes if raw.name in own_names), default=1
                ),
            )
        )
    used_names = {name for layer in layers for name in (*layer.parameters, *layer.buffers, *layer.constants)}
    return LayerGraph(
        layers=tuple(layers),
        nodes=nodes,
        cuts=tuple(live),
        tensors=tensors,
        batch_norms=batch_norms,
        input_structure=input_structure,
        output_structure=output_structure,
        training=training,
        torch_version=torch_version,
        unused=tuple(name for name in tensors if name not in used_names),
    )


def _outputs(
    lowered: LoweredGraph, tensors: Mapping[str, TensorSpec], returned: Any, leaf_index: Callable[[Any], int]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the values that the model returns, each once, and how they make up what it returns."""
    names: list[str] = []

    def leaf(value: Any) -> dict[str, Any]:
        output = lowered.outputs[leaf_index(value)]
        if isinstance(output, dict) and "tensor" in output:
            output = {"node": _returned_tensor(lowered, tensors[output["tensor"]])}
        if not isinstance(output, dict):
            return {"constant": output}
        name = output.get("node")
        value_type = _type_of(lowered, name)
        if name is None or value_type is None or value_type.dtype not in BYTES_PER_ELEMENT:
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                "The model returns a number or a tensor of a kind that can't be handed to the loss on a device.",
                f"Return tensors of {', '.join(BYTES_PER_ELEMENT)}, and take sizes from their shapes in the loss.",
            )
        if name not in names:
            names.append(name)
        return {"value": names.index(name)}

    structure = describe(returned, leaf)
    return tuple(names), structure


def _returned_tensor(lowered: LoweredGraph, spec: TensorSpec) -> str:
    """A node that hands a parameter or buffer out, for a model that returns one."""
    name = f"returned_{len(lowered.nodes)}"
    lowered.nodes.append(
        RawNode(
            name=name,
            op="aten.alias.default",
            args=[{"tensor": spec.name}],
            kwargs={},
            value=ValueType(dtype=spec.dtype, shape=spec.shape),
            module="",
            line="",
            mutates=(),
            views=(f"tensor:{spec.name}",),
        )
    )
    return name


def _type_of(lowered: LoweredGraph, name: str | None) -> ValueType | None:
    for known, value in lowered.inputs:
        if known == name:
            return value
    return next((node.value for node in lowered.nodes if node.name == name), None)


def _live_value(name: str, value: ValueType, *, is_input: bool) -> LiveValue:
    assert value.dtype is not None
    shape = tuple(-1 if size is None or size == BATCH else size for size in value.shape)
    exact = value.shape.count(BATCH) == 1 and None not in value.shape
    return LiveValue(
        name=name,
        dtype=value.dtype,
        shape=shape,
        batch_dim=value.shape.index(BATCH) if exact else -1,
        requires_grad=False,
        is_input=is_input,
    )


def _batch_norm(
    node: RawNode,
    types: Mapping[str, ValueType],
    tensors: Mapping[str, TensorSpec],
    momenta: Mapping[str, float | None],
) -> BatchNorm:
    mean, variance = node.args[3]["tensor"], node.args[4]["tensor"]
    if tensors[mean].kind != "buffer" or tensors[variance].kind != "buffer":
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            f"A batch normalisation keeps its running statistics in {mean}, which is no buffer of the model{node.line}.",
            "Make them with register_buffer.",
        )
    path = mean.rpartition(".")[0]
    counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
    channels = tensors[mean].shape[0]
    return BatchNorm(
        name=node.name,
        running_mean=mean,
        running_var=variance,
        num_batches_tracked=counter if counter in tensors else None,
        momentum=momenta[path] if path in momenta else float(node.args[6]),
        channels=channels,
        elements_per_sample=_positions(node, types, channels),
    )


def _positions(node: RawNode, types: Mapping[str, ValueType], channels: int) -> int:
    """Elements of one channel that a sample gives to a batch norm."""
    normalised = node.args[0].get("node")
    elements = types[normalised].elements if normalised is not None else None
    if elements is None or elements[0] == 0 or elements[1] != 0:
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            f"A batch normalisation sees a number of elements that isn't a multiple of the batch{node.line}.",
            "Use a layer or group normalisation there.",
        )
    return elements[0] // channels


def _least_batch(node: RawNode, types: Mapping[str, ValueType]) -> int:
    """Two samples for a training batch norm over one position: the variance of one element is nothing."""
    if operators.packet_of(node.op) != "batch_norm" or not node.args[5] or "node" not in node.args[0]:
        return 1
    shape = types[node.args[0]["node"]].shape
    return 2 if all(size == 1 for size in shape[2:]) and shape[:1] == (BATCH,) else 1


def _layer_names(nodes: Iterable[RawNode], cuts: Cuts) -> list[str]:
    """For each layer the path that its modules share, or its first heavy module's where they share none."""
    paths: list[list[str]] = [[] for _ in range(cuts.layers)]
    heavy: list[list[str]] = [[] for _ in range(cuts.layers)]
    for node in nodes:
        layer = cuts.layer_of[node.name]
        if layer is not None and node.module:
            paths[layer].append(node.module)
            if operators.packet_of(node.op) in operators.HEAVY_PACKETS:
                heavy[layer].append(node.module)
    names: list[str] = []
    for index in range(cuts.layers):
        candidates = [_shared_path(heavy[index] or paths[index]), *heavy[index][:1], *paths[index][:1]]
        name = next((name for name in candidates if name and name not in names), "")
        fallback = next((name for name in candidates if name), "layer")
        names.append(name or _numbered(fallback, names))
    return names


def _shared_path(paths: list[str]) -> str:
    if not paths:
        return ""
    split = [path.split(".") for path in paths]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _numbered(name: str, taken: list[str]) -> str:
    number = 2
    while f"{name}:{number}" in taken:
        number += 1
    return f"{name}:{number}" if name in taken else name
