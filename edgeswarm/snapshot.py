"""The training state of one layer <-> the bytes of a safetensors file.

That is what a worker fetches before its first round, and what the result is gathered from:

    parameter.<name>  buffer.<name>  constant.<name>      names are those of the user's model
    optimizer.<parameter name>.<state key>                state that is a tensor (momentum, AdamW's step)
    metadata                                              round, the optimizer's other state, its groups' values
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .json_tree import from_tree, to_tree
from .layer_file import layer_file_name
from .wire.tensor_file import read_tensors, tensor_pieces

LAYER_FORMAT = "edgeswarm-layer/1"


@dataclass(frozen=True)
class LayerState:
    """What a layer is at the beginning of a round.

    round: the round that comes next. parameters, buffers, constants: by original name; a tensor that several layers use
    (tied weights) is in the state of each. optimizer: state by parameter name, then by the optimizer's own key.
    groups: the values of the optimizer's groups (learning rate, betas, ...) by group index, without the parameters.
    """

    round: int
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    groups: Sequence[Mapping[str, object]] = ()


def write_layer_file(folder: Path, layer: int, state: LayerState) -> Path:
    """Write a layer's file into a snapshot folder, whole or not at all. Raises OSError."""
    path = folder / layer_file_name(layer)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.writelines(layer_pieces(state)[1])
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def pack_layer(state: LayerState) -> bytes:
    """The file's bytes. Raises ValueError as `layer_pieces` does."""
    return b"".join(layer_pieces(state)[1])


def layer_pieces(state: LayerState) -> tuple[int, Iterator[memoryview]]:
    """(how many bytes the file has, these in pieces), of the tensors' own memory: as `tensor_pieces` has it.

    Raises ValueError naming a tensor or a piece of optimizer state that can't be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for kind, members in _kinds(state):
        tensors |= {f"{kind}.{name}": tensor for name, tensor in members.items()}
    document = {
        "round": state.round,
        "optimizer": pack_values(state.optimizer, tensors, prefix="optimizer"),
        "groups": pack_values([dict(group) for group in state.groups], tensors, prefix="group"),
    }
    return tensor_pieces(tensors, (LAYER_FORMAT, json.dumps(document)))


def unpack_layer(data: bytes | bytearray | memoryview) -> LayerState:
    """The state in a file's bytes; its tensors are views of `data` where that is writable. Raises ValueError."""
    tensors, metadata = read_tensors(data)
    if LAYER_FORMAT not in metadata:
        raise ValueError(f"this is no layer in the format {LAYER_FORMAT}")
    members: dict[str, dict[str, torch.Tensor]] = {"parameter": {}, "buffer": {}, "constant": {}}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind in members:
            members[kind][name] = tensor
    try:
        document = json.loads(metadata[LAYER_FORMAT])
        round_number = document["round"]
        optimizer = unpack_values(document["optimizer"], tensors)
        groups = unpack_values(document["groups"], tensors)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the layer's metadata is incomplete: {error}") from error
    if type(round_number) is not int or round_number < 0:
        raise ValueError("the layer's round is not a whole number")
    if not isinstance(optimizer, dict) or not all(isinstance(state, dict) for state in optimizer.values()):
        raise ValueError("the layer's optimizer state isn't state by parameter name")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("the layer's optimizer groups aren't a list of values by name")
    return LayerState(
        round=round_number,
        parameters=members["parameter"],
        buffers=members["buffer"],
        constants=members["constant"],
        optimizer=optimizer,
        groups=tuple(groups),
    )


def pack_values(value: object, tensors: dict[str, torch.Tensor], *, prefix: str) -> object:
    """The JSON form of nested Python values; tensors in them are put into `tensors` under a name of their own."""

    def keep(leaf: object, path: tuple[str, ...]) -> object:
        name = ".".join((prefix, *path))
        if not isinstance(leaf, torch.Tensor):
            raise ValueError(f"{name}: a {type(leaf).__name__} can't be written; numbers, texts and tensors can")
        while name in tensors:
            name += "+"  # ("a.b", "c") and ("a", "b.c") have one path
        tensors[name] = leaf
        return name

    if isinstance(value, Mapping):
        value = {key: dict(inner) if isinstance(inner, Mapping) else inner for key, inner in value.items()}
    return to_tree(value, keep)


def unpack_values(tree: object, tensors: Mapping[str, torch.Tensor]) -> object:
    """What `pack_values` made its JSON form of. Raises ValueError."""

    def tensor(name: object) -> torch.Tensor:
        if not isinstance(name, str) or name not in tensors:
            raise ValueError(f"there is no tensor {str(name)[:100]!r}")
        return tensors[name]

    return from_tree(tree, tensor)


def _kinds(state: LayerState) -> tuple[tuple[str, Mapping[str, torch.Tensor]], ...]:
    return ("parameter", state.parameters), ("buffer", state.buffers), ("constant", state.constants)
