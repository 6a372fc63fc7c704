"""The result of a training: a folder that plain PyTorch loads.

    model.safetensors       every key of model.state_dict(): load_state_dict(load_file(...), strict=True)
    optimizer.safetensors   the optimizer's state that is tensors
    optimizer.json          its other state by parameter name, and the values of its groups by index
    metrics.json  plan.json

Written beside its place and moved there whole: a folder of that name is always a whole result.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import TensorSpec
from edgeswarm.snapshot import LayerState, pack_values
from edgeswarm.wire.tensor_file import write_tensors

from .output_folder import check_output_is_free

OPTIMIZER_FORMAT = "edgeswarm-optimizer/1"


def write_result(
    folder: Path,
    *,
    layer_states: Sequence[LayerState],
    tensors: Mapping[str, TensorSpec],
    plan: Mapping[str, Any],
    metrics: Mapping[str, Any],
    unused: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a job's result as the folder `folder`, whole or not at all.

    layer_states: of every layer, in order. tensors: what the model consists of (LayerGraph.tensors); it says which of
    them `state_dict` has and under which further names (tied weights). plan, metrics: JSON objects. unused: tensors of
    the model that no layer uses.
    Raises EdgeswarmError: OUTPUT_EXISTS, or OUTPUT_FAILED where the disk is full, the folder can't be written, or a layer
    has not come with all of its tensors.
    """
    check_output_is_free(folder)
    files = {
        "model.safetensors": write_tensors(state_dict(layer_states, tensors, unused=unused or {}), ("format", "pt")),
        **_optimizer_files(layer_states, tensors),
        "metrics.json": _json(metrics),
        "plan.json": _json(plan),
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}")
        try:
            unfinished.mkdir()
            for name, content in files.items():
                _write(unfinished / name, content)
            check_output_is_free(folder)  # rename would take the place of an empty folder
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The result can't be written to {folder}: {error.strerror or error}.",
            "Free space there, or choose another folder with --output.",
        ) from error


def state_dict(
    layer_states: Sequence[LayerState], tensors: Mapping[str, TensorSpec], *, unused: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The model's state_dict out of its layers, in the model's order, tied weights under each of their names.

    Raises EdgeswarmError (OUTPUT_FAILED) where a tensor is missing or has another shape.
    """
    found: dict[str, torch.Tensor] = dict(unused)
    for state in layer_states:
        for members in (state.parameters, state.buffers):
            for name, tensor in members.items():
                found.setdefault(name, tensor)
    gathered: dict[str, torch.Tensor] = {}
    for spec in tensors.values():
        if spec.kind == "constant" or not spec.persistent:
            continue
        value = found.get(spec.name)
        if value is None or tuple(value.shape) != spec.shape:
            shape = "missing" if value is None else f"of shape {tuple(value.shape)}, not {spec.shape}"
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The result can't be put together: {spec.name} is {shape}.",
                "Install the same version of edgeswarm on all devices, and train again.",
            )
        for name in (spec.name, *spec.aliases):
            gathered[name] = value
    return gathered


def _optimizer_files(layer_states: Sequence[LayerState], tensors: Mapping[str, TensorSpec]) -> dict[str, bytes]:
    found: dict[str, Mapping[str, object]] = {}
    for state in layer_states:
        for name, values in state.optimizer.items():
            found.setdefault(name, values)
    ordered = {name: found[name] for name in tensors if name in found}
    groups = next((state.groups for state in layer_states if state.groups), ())
    kept: dict[str, torch.Tensor] = {}
    document = {
        "format": OPTIMIZER_FORMAT,
        "round": layer_states[0].round if layer_states else 0,
        "state": pack_values(ordered, kept, prefix="state"),
        "groups": pack_values([dict(group) for group in groups], kept, prefix="group"),
    }
    return {"optimizer.safetensors": write_tensors(kept), "optimizer.json": _json(document)}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(document), indent=1, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """The value with null for each number that JSON doesn't have: the loss of a training that went wrong."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
