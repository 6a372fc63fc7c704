"""What the planner is told of a model: its layers' costs, and how it is trained. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.model.values import BYTES_PER_ELEMENT, LiveValue
from edgeswarm.model_costs import LayerCosts, ModelCosts, TiedCosts
from edgeswarm.wire.frames import NARROWINGS

ADAM_FACTOR = 1.5  # bytes of state per byte of parameters, from which on it is an optimizer like Adam
NARROW = "bfloat16"  # float16 has as many bytes
STATISTIC_BYTES = 8  # float64, whatever travels otherwise
# Of what a micro-batch saves and its backward lets go. Set from two runs of the one stage that was measured: BERT-small's last
# one with four micro-batches that wait (bench.predictions).
GAPS_BEHIND_BACKWARD = 0.25


MetRows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ServedSamples:
    """Bytes of a sample that the first stage and the last get from this machine, and a stage that is both (None: the sum).

    epochs: of the training.
    """

    input_bytes: int
    label_bytes: int
    joint_bytes: int | None = None
    epochs: int = 1


@dataclass(frozen=True)
class ModelFacts:
    """What the planner is told of the model beside its graph. optimizer_state_factor: bytes of state per byte of parameters.

    batch_size: samples of a mini-batch. rest: of an epoch's last one, where that has fewer; else 0.
    wire_dtype: how float32 travels between devices; None for as it is. served: None where the devices have the samples.
    met_rows: by table, (samples, rows that they meet), ascending up to the mini-batch (met_rows.py).
    job_bytes: of memory, what a worker holds of the job itself: what its file imports, and data sets that it opens.
    loss_bytes, target_bytes: of memory, what the loss takes of each sample in the last stage, and its target.
    """

    layer_graph: LayerGraph
    dtype: str
    batch_size: int
    optimizer_state_factor: float
    rest: int = 0
    wire_dtype: str | None = None
    served: ServedSamples | None = None
    met_rows: Mapping[str, MetRows] = field(default_factory=dict)
    job_bytes: int = 0
    loss_bytes: int = 0
    target_bytes: int = 0


def model_costs(
    layer_graph: LayerGraph,
    *,
    wire_dtype: str | None,
    heap_slack: Sequence[float] = (),
    transient_bytes: Sequence[int] = (),
    workspace_bytes: Sequence[int] = (),
    joint_workspace_bytes: Sequence[int] = (),
    kernel_bytes: Sequence[int] = (),
    optimizer_state_factor: float | None = None,
    met_rows: Mapping[str, MetRows] | None = None,
    target_bytes: int = 0,
) -> ModelCosts:
    """The layers' costs as the planner takes them; bytes of activations and gradients as they travel.

    heap_slack: by layer, what saved activations take in a heap by their bytes; none for just these.
    transient_bytes, workspace_bytes, joint_workspace_bytes: by layer, as LayerCosts has them, and as measured; none where they
    weren't.
    kernel_bytes: by layer, of compiled kernels; none for none.
    optimizer_state_factor: None leaves out the memory that gradients and the optimizer's step take for a moment.
    met_rows, target_bytes: as ModelFacts has them.
    """
    met = met_rows or {}

    def travelling_bytes(name: str) -> int:
        """Of a parameter's gradient; zeros included."""
        spec = layer_graph.tensors[name]
        return _travelling(spec.bytes, spec.dtype, wire_dtype) if spec.trainable else 0

    def in_heap(layer: Layer, size_bytes: int) -> int:
        return round(heap_slack[layer.index] * size_bytes) if heap_slack else size_bytes

    def met_bytes(layer: Layer) -> tuple[tuple[int, int], ...]:
        """Of all its tables, which are counted in the same samples."""
        tables = [name for name in layer.parameters if name in met]
        of_row = {name: travelling_bytes(name) / layer_graph.tensors[name].shape[0] for name in tables}
        together = zip(*(met[name] for name in tables), strict=True)
        return tuple(
            (pairs[0][0], round(sum(of_row[name] * rows for name, (_, rows) in zip(tables, pairs, strict=True))))
            for pairs in together
        )

    def gradient_bytes(layer: Layer) -> int:
        whole = sum(travelling_bytes(name) for name in layer.parameters if name not in met)
        of_tables = met_bytes(layer)
        return whole + (of_tables[-1][1] if of_tables else 0)

    def statistics_bytes(layer: Layer) -> int:
        """As the worker has them: of each batch norm a count, and two sums a channel."""
        norms = [norm for norm in layer_graph.batch_norms if norm.running_mean in layer.buffers]
        return STATISTIC_BYTES * sum(1 + 2 * norm.channels for norm in norms)

    def cut_bytes(values: Sequence[LiveValue], wire_dtype: str | None) -> int:
        return sum(
            _travelling(value.bytes_per_sample, value.dtype, None if value.is_input else wire_dtype) for value in values
        )

    def step_bytes(layer: Layer) -> int:
        """A gradient is there twice until it is added up, but for a table's; Adam's step makes two more of its size."""
        if optimizer_state_factor is None:
            return 0
        is_adam = optimizer_state_factor >= ADAM_FACTOR
        trained = [name for name in layer.parameters if layer_graph.tensors[name].trainable]
        sizes = [layer_graph.tensors[name].bytes for name in trained if is_adam or name not in met]
        return max(sizes, default=0) * (2 if is_adam else 1)

    holders: dict[str, list[int]] = {}
    for layer in layer_graph.layers:
        for name in layer.parameters:
            holders.setdefault(name, []).append(layer.index)
    return ModelCosts(
        tied=tuple(
            TiedCosts(tuple(layers), layer_graph.tensors[name].bytes, travelling_bytes(name))
            for name, layers in holders.items()
            if len(layers) > 1
        ),
        input_bytes=sum(value.bytes_per_sample for value in layer_graph.cuts[0]),
        target_bytes=target_bytes,
        layers=tuple(
            LayerCosts(
                name=layer.name,
                param_bytes=layer.param_bytes,
                trained_bytes=layer.trainable_param_bytes,
                output_bytes=cut_bytes(cut_after, wire_dtype),
                answered_bytes=cut_bytes([value for value in cut_after if value.requires_grad], wire_dtype),
                saved_bytes=in_heap(layer, layer.saved_bytes),
                waiting_bytes=in_heap(layer, _waiting_bytes(layer)),
                flops_forward=float(layer.flops_forward),
                flops_backward=float(layer.flops_backward),
                least_batch=layer.least_batch,
                gradient_bytes=gradient_bytes(layer),
                transient_bytes=transient_bytes[layer.index] if transient_bytes else 0,
                kernel_bytes=kernel_bytes[layer.index] if kernel_bytes else 0,
                workspace_bytes=max(step_bytes(layer), workspace_bytes[layer.index] if workspace_bytes else 0),
                joint_workspace_bytes=joint_workspace_bytes[layer.index] if joint_workspace_bytes else 0,
                narrow_output_bytes=cut_bytes(cut_after, NARROW) if wire_dtype in (None, "float32") else None,
                statistics_bytes=statistics_bytes(layer),
                held_input_bytes=layer.held_input_bytes,
                met_gradient_bytes=met_bytes(layer),
                output_frames=max(1, len(cut_after)),
                answered_frames=max(1, sum(value.requires_grad for value in cut_after)),
            )
            for layer, cut_after in zip(layer_graph.layers, layer_graph.cuts[1:], strict=True)
        ),
    )


def _waiting_bytes(layer: Layer) -> int:
    """With the gaps between what waits for gradients of weights, which what comes later doesn't quite fill."""
    return layer.waiting_bytes + round(GAPS_BEHIND_BACKWARD * max(0, layer.saved_bytes - layer.waiting_bytes))


def _travelling(size_bytes: int, dtype: str, wire_dtype: str | None) -> int:
    if wire_dtype is None or (dtype, wire_dtype) not in NARROWINGS:
        return size_bytes
    return size_bytes * BYTES_PER_ELEMENT[wire_dtype] // BYTES_PER_ELEMENT[dtype]
