"""The layer files of a checkpoint: read one by one, and made into what workers fetch when a training goes on. Imports torch.

round-00000184/layer-3.safetensors  ─┐
constants of a new export           ─┴──> layer-3.safetensors for the data service
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.snapshot import LayerState, unpack_layer

from .manifest import unreadable


@dataclass(frozen=True)
class LayerFiles:
    """A checkpoint's layers. folder: of its round. round: the one that comes next. layers: how many there are.

    of_this_job: the user's files are still those with which it was made.
    """

    folder: Path
    round: int
    layers: int
    of_this_job: bool = True

    def read(self, layer: int) -> LayerState:
        """A layer's state; its tensors are views of the file, which takes memory only as they are read.

        Raises EdgeswarmError (CHECKPOINT) naming a file that is missing, cut off, or of another round.
        """
        path = self.folder / layer_file_name(layer)
        try:
            with path.open("rb") as file:
                state = unpack_layer(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)))
        except OSError as error:
            raise unreadable(path, str(error.strerror or error)) from error
        except ValueError as error:
            raise unreadable(path, str(error)) from error
        if state.round != self.round:
            raise unreadable(path, f"it is of round {state.round}, not {self.round}")
        return state

    def all(self) -> list[LayerState]:
        """Every layer, in order. Raises as `read` does."""
        return [self.read(layer) for layer in range(self.layers)]

    def to_go_on(
        self, layer_graph: LayerGraph, constants: Mapping[int, Mapping[str, torch.Tensor]]
    ) -> Iterator[LayerState]:
        """Every layer with the constants of a new export of the model. constants: by layer.

        Raises EdgeswarmError (CHECKPOINT): as `read` does, and where the model isn't that of the checkpoint.
        """
        if len(layer_graph.layers) != self.layers:
            raise _other_model(f"it has {len(layer_graph.layers)} layers now, and had {self.layers}")
        for layer in layer_graph.layers:
            state = self.read(layer.index)
            _check_layer(layer, state, layer_graph)
            yield replace(state, constants=constants[layer.index])


def _check_layer(layer: Layer, state: LayerState, layer_graph: LayerGraph) -> None:
    for names, found in ((layer.parameters, state.parameters), (layer.buffers, state.buffers)):
        for name in sorted({*names, *found}):
            if name not in names:
                raise _other_model(f"{name} is not in its layer {layer.index} ({layer.name}) any more")
            if name not in found:
                raise _other_model(f"{name} in its layer {layer.index} ({layer.name}) is new")
            spec, tensor = layer_graph.tensors[name], found[name]
            dtype = str(tensor.dtype).removeprefix("torch.")
            if (tuple(tensor.shape), dtype) != (spec.shape, spec.dtype):
                raise _other_model(
                    f"{name} is {spec.dtype} {list(spec.shape)} now, and was {dtype} {list(tensor.shape)}"
                )


def _other_model(problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.CHECKPOINT,
        f"The model is not the one of the checkpoint: {problem}.",
        "Give the model back its shape to go on, or move the unfinished training away and train from the beginning.",
    )
