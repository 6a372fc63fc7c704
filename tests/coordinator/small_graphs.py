"""A layer graph without nodes: enough for everything that looks at layers, cuts and names only."""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.model.layer_graph import Layer, LayerGraph, LiveValue, TensorSpec


def small_graph(parameters: Sequence[Sequence[str]], *, signatures: Sequence[str] | None = None) -> LayerGraph:
    """One layer for each list of parameter names; a name that stands in two layers is a tied weight.

    Names that begin with "frozen" aren't trained.
    """
    names = list(dict.fromkeys(name for layer in parameters for name in layer))
    tensors = {name: TensorSpec(name, (8,), "float32", "parameter", not name.startswith("frozen")) for name in names}
    layers = tuple(
        Layer(
            index=index,
            name=f"part{index}",
            parameters=tuple(held),
            buffers=(),
            constants=(),
            param_bytes=32 * len(held),
            trainable_param_bytes=32 * sum(not name.startswith("frozen") for name in held),
            saved_bytes=64,
            held_input_bytes=0,
            let_go_bytes=0,
            waiting_bytes=0,
            output_bytes=16,
            flops_forward=100,
            flops_backward=200,
            signature=signatures[index] if signatures is not None else f"signature{index}",
            least_batch=1,
        )
        for index, held in enumerate(parameters)
    )
    cuts = tuple((LiveValue(f"value{cut}", "float32", (-1, 4), 0, cut > 0),) for cut in range(len(layers) + 1))
    return LayerGraph(
        layers=layers,
        nodes=(),
        cuts=cuts,
        tensors=tensors,
        batch_norms=(),
        input_structure={"value": 0},
        output_structure={"value": 0},
        training=True,
        torch_version="0",
    )
