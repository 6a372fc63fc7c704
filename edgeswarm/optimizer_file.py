"""The optimizer's state of a whole model <-> two files of a training's result, and back into a plain PyTorch optimizer.

    optimizer.safetensors   the state that is tensors (momentum, AdamW's averages and step)
    optimizer.json          its other state by parameter name, the values of its groups by index, the parameters' shapes

Names, not numbers: the optimizer of a device has its own parameters alone, and the one over the whole model has them all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .errors import EdgeswarmError, ErrorCode
from .json_fields import Fields
from .model.layer_graph import TensorSpec
from .snapshot import LayerState, pack_values, unpack_values
from .synced_files import write_synced
from .wire.tensor_file import read_tensors, save_tensors

FORMAT = "edgeswarm-optimizer/1"
JSON_NAME = "optimizer.json"
TENSORS_NAME = "optimizer.safetensors"

# What PyTorch itself keeps in a group beside its values.
_NOT_VALUES = ("params", "param_names")
_SHOWN_NAMES = 3


def write_optimizer(folder: Path, layer_states: Sequence[LayerState], tensors: Mapping[str, TensorSpec]) -> None:
    """Writes the two files. layer_states: of all layers. tensors: what the model consists of, in its order. Raises OSError."""
    found: dict[str, Mapping[str, object]] = {}
    for state in layer_states:
        for name, values in state.optimizer.items():
            found.setdefault(name, values)
    ordered = {name: found[name] for name in tensors if name in found}
    groups = next((state.groups for state in layer_states if state.groups), ())
    kept: dict[str, torch.Tensor] = {}
    document = {
        "format": FORMAT,
        "round": layer_states[0].round if layer_states else 0,
        "state": pack_values(ordered, kept, prefix="state"),
        "groups": pack_values([dict(group) for group in groups], kept, prefix="group"),
        "shapes": {name: list(tensors[name].shape) for name in ordered},
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    save_tensors(folder / TENSORS_NAME, kept)
    write_synced(folder / JSON_NAME, [text.encode()])


@dataclass(frozen=True)
class _Saved:
    """round: how many were trained. state: by parameter name. groups: their values by index. shapes: of the parameters."""

    round: int
    state: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    shapes: Mapping[str, tuple[int, ...]]


def load_optimizer(path: str | Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """What `edgeswarm.load_optimizer` says.

    Raises EdgeswarmError (CHECKPOINT) for files that can't be read, ValueError where model or optimizer are not those of the
    training; then the optimizer is as it was.
    """
    saved = _read(Path(path))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    _check_parameters(saved, parameters, optimizer)
    _check_groups(saved, optimizer)
    numbers: dict[int, int] = {}
    groups = []
    for group, values in zip(optimizer.param_groups, saved.groups, strict=True):
        for parameter in group["params"]:
            numbers[id(parameter)] = len(numbers)
        own = {key: value for key, value in group.items() if key not in _NOT_VALUES}
        groups.append({**own, **values, "params": [numbers[id(parameter)] for parameter in group["params"]]})
    state = {numbers[id(parameters[name])]: dict(values) for name, values in saved.state.items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return saved.round


def _check_parameters(
    saved: _Saved, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    unknown = [name for name in saved.state if name not in parameters]
    if unknown:
        raise ValueError(f"the model has no parameter {_first_of(unknown)}: it is not the one that was trained")
    for name, shape in saved.shapes.items():
        if name in parameters and tuple(parameters[name].shape) != shape:
            raise ValueError(
                f"{name} is {list(parameters[name].shape)} in this model, and {list(shape)} in the one that was trained"
            )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    untrained = [name for name in saved.state if id(parameters[name]) not in held]
    if untrained:
        raise ValueError(
            f"the optimizer doesn't train {_first_of(untrained)} of this model: make it over the parameters of the very "
            "model that it is given with"
        )


def _check_groups(saved: _Saved, optimizer: torch.optim.Optimizer) -> None:
    if len(saved.groups) != len(optimizer.param_groups):
        raise ValueError(
            f"the optimizer has {len(optimizer.param_groups)} parameter groups, and that of the training "
            f"{len(saved.groups)}"
        )
    for index, (group, values) in enumerate(zip(optimizer.param_groups, saved.groups, strict=True)):
        lacking = sorted(values.keys() - group.keys() - {"initial_lr"})
        new = sorted(group.keys() - values.keys() - {*_NOT_VALUES, "initial_lr"})
        # One of the two alone is another version of PyTorch, which knows some value more.
        if lacking and new:
            raise ValueError(
                f"group {index} of the optimizer has {_first_of(new)}, and that of the training had {_first_of(lacking)}: "
                f"they are of different kinds ({type(optimizer).__name__} is not what was trained with)"
            )


def _read(path: Path) -> _Saved:
    folder = path if path.is_dir() else path.parent
    document_path, tensors_path = folder / JSON_NAME if path.is_dir() else path, folder / TENSORS_NAME
    try:
        text = document_path.read_bytes()
        content = bytearray(tensors_path.read_bytes())
    except OSError as error:
        raise _unreadable(Path(error.filename or document_path), error.strerror or str(error)) from error
    try:
        tensors, _ = read_tensors(content)
    except ValueError as error:
        raise _unreadable(tensors_path, str(error)) from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(document_path, f"it is no JSON: {error}") from error
    fields = Fields.of(document, partial(_unreadable, document_path), what="the optimizer's state")
    fields.expect_format(FORMAT)
    shapes = fields.section("shapes")
    try:
        state = unpack_values(fields.values.get("state"), tensors)
        groups = unpack_values(fields.values.get("groups"), tensors)
    except ValueError as error:
        raise _unreadable(document_path, str(error)) from error
    if not isinstance(state, dict) or not all(isinstance(values, dict) for values in state.values()):
        raise fields.error("state is no state by parameter name")
    if not isinstance(groups, list) or not all(isinstance(values, dict) for values in groups):
        raise fields.error("groups is no list of values by name")
    return _Saved(
        round=fields.integer("round", minimum=0),
        state=state,
        groups=groups,
        shapes={name: shapes.integers(name, minimum=0) for name in shapes.names()},
    )


def _unreadable(path: Path, problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.CHECKPOINT,
        f"The optimizer's state in {path} can't be read: {problem}.",
        f"Give the folder of a training's result, with {JSON_NAME} and {TENSORS_NAME} as they were written.",
    )


def _first_of(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
