from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.snapshot import LayerState, write_layer_file
from edgeswarm_coordinator.layer_files import LayerFiles
from tests.models import DigitsCNN


@pytest.fixture(scope="module")
def graph() -> LayerGraph:
    return export_model(DigitsCNN(batch_norm=True, channels=4), (torch.randn(4, 1, 8, 8),), {}).layer_graph


@pytest.fixture
def files(graph: LayerGraph, tmp_path: Path) -> LayerFiles:
    """A checkpoint of that model after round 6."""
    for layer in graph.layers:
        tensors = {
            name: torch.full(graph.tensors[name].shape, 6, dtype=getattr(torch, graph.tensors[name].dtype))
            for name in (*layer.parameters, *layer.buffers)
        }
        write_layer_file(
            tmp_path,
            layer.index,
            LayerState(
                6,
                {name: tensors[name] for name in layer.parameters},
                {name: tensors[name] for name in layer.buffers},
            ),
        )
    return LayerFiles(tmp_path, round=6, layers=len(graph.layers))


def test_the_layers_with_the_constants_of_a_new_export(files: LayerFiles, graph: LayerGraph) -> None:
    constants = {layer.index: {"evaluation.scale": torch.tensor(float(layer.index))} for layer in graph.layers}
    states = list(files.to_go_on(graph, constants))
    assert [float(state.constants["evaluation.scale"]) for state in states] == [float(i) for i in range(files.layers)]
    assert all(bool((value == 6).all()) for state in states for value in state.parameters.values())
    assert {name for state in states for name in state.buffers} == {
        name for layer in graph.layers for name in layer.buffers
    }


@pytest.mark.parametrize("damage", ["cut off", "empty", "gone", "of another round", "garbage"])
def test_a_damaged_file_is_named(files: LayerFiles, damage: str) -> None:
    path = files.folder / layer_file_name(1)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "of another round":
        files = dataclasses.replace(files, round=7)
        path = files.folder / layer_file_name(0)
    else:
        path.write_bytes({"cut off": content[:-1], "empty": b"", "garbage": bytes(len(content))}[damage])
    with pytest.raises(EdgeswarmError, match=str(path)) as caught:
        files.all()
    assert caught.value.code is ErrorCode.CHECKPOINT


def changed(graph: LayerGraph, name: str, **more: object) -> LayerGraph:
    spec = dataclasses.replace(graph.tensors[name], **more)  # type: ignore[arg-type]
    return dataclasses.replace(graph, tensors={**graph.tensors, name: spec})


def test_another_model_is_told_by_what_differs(files: LayerFiles, graph: LayerGraph) -> None:
    layer = next(layer for layer in graph.layers if layer.parameters)
    name = layer.parameters[0]
    fewer = dataclasses.replace(layer, parameters=layer.parameters[1:])
    more = dataclasses.replace(layer, parameters=(*layer.parameters, "new.weight"))

    def with_layer(other: object) -> LayerGraph:
        layers = tuple(other if entry is layer else entry for entry in graph.layers)
        return dataclasses.replace(graph, layers=layers)  # type: ignore[arg-type]

    for other, problem in (
        (dataclasses.replace(graph, layers=graph.layers[:-1]), f"has {files.layers - 1} layers now, and had"),
        (changed(graph, name, shape=(3,)), rf"{name} is float32 \[3\] now"),
        (changed(graph, name, dtype="float64"), f"{name} is float64 .* was float32"),
        (with_layer(fewer), f"{name} is not in its layer {layer.index}"),
        (with_layer(more), "new.weight in its layer .* is new"),
    ):
        with pytest.raises(EdgeswarmError, match=problem) as caught:
            list(files.to_go_on(other, {entry.index: {} for entry in graph.layers}))
        assert caught.value.code is ErrorCode.CHECKPOINT
