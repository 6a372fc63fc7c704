"""The result of a training: a folder that plain PyTorch loads.

    model.safetensors       every key of model.state_dict(): load_state_dict(load_file(...), strict=True)
    best.safetensors        the same of the best evaluation, where there was one
    optimizer.safetensors  optimizer.json   for `edgeswarm.load_optimizer`
    metrics.json  plan.json

Written beside its place and moved there whole: a folder of that name is always a whole result. One file after the other, each
without being in memory as a whole: all of them together are several times the model, for which training needed no room here.
"""

from __future__ import annotations

import glob
import json
import math
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import TensorSpec
from edgeswarm.optimizer_file import write_optimizer
from edgeswarm.snapshot import LayerState
from edgeswarm.synced_files import sync_folder, write_synced
from edgeswarm.wire.tensor_file import save_tensors

from .metrics import METRICS_NAME
from .options import unfinished_folder
from .output_folder import check_output_is_free, way_to_another_disk

_END = b"\n}\n"  # of a document of `_json`


def write_result(
    folder: Path,
    *,
    layer_states: Sequence[LayerState],
    tensors: Mapping[str, TensorSpec],
    plan: Mapping[str, Any],
    metrics: Mapping[str, Any],
    round_lines: Iterable[bytes],
    unused: Mapping[str, torch.Tensor] | None = None,
    best_states: Sequence[LayerState] | None = None,
) -> None:
    """Write a job's result as the folder `folder`, whole or not at all.

    layer_states: of every layer, in order. tensors: what the model consists of (LayerGraph.tensors); it says which of
    them `state_dict` has and under which further names (tied weights). plan, metrics: JSON objects. round_lines: what
    `rounds` of metrics.json has, each as JSON in one line. unused: tensors of the model that no layer uses. best_states: of
    every layer as it was at the best evaluation.
    What lies beside the folder half written is removed: the caller holds its checkpoints, so that no other command writes there.
    Raises EdgeswarmError: OUTPUT_EXISTS, or OUTPUT_FAILED where the disk is full, the folder can't be written, or a layer
    has not come with all of its tensors.
    """
    check_output_is_free(folder)
    models = {"model.safetensors": layer_states, "best.safetensors": best_states}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for half_written in folder.parent.glob(f".{glob.escape(folder.name)}.{12 * '[0-9a-f]'}"):
            shutil.rmtree(half_written, ignore_errors=True)  # of a command that was killed
        unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}")
        try:
            unfinished.mkdir()
            for name, states in models.items():
                if states is not None:
                    named = state_dict(states, tensors, unused=unused or {})
                    save_tensors(unfinished / name, named, ("format", "pt"))
            write_optimizer(unfinished, layer_states, tensors)
            write_synced(unfinished / METRICS_NAME, _with_rounds(_json(metrics), round_lines))
            write_synced(unfinished / "plan.json", [_json(plan)])
            sync_folder(unfinished)
            check_output_is_free(folder)  # rename would take the place of an empty folder
            unfinished.rename(folder)
            sync_folder(folder.parent)  # what it was made of is removed next
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        way = way_to_another_disk(unfinished_folder(folder))
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The result can't be written to {folder}: {error.strerror or error}.",
            f"Free space there, or {way or 'choose another folder with --output'}.",
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
                "Install the same version of edgeswarm on all machines, and start the training again.",
            )
        for name in (spec.name, *spec.aliases):
            gathered[name] = value
    return gathered


def _with_rounds(document: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON object of `_json` with `rounds` as its last member, piece by piece: a line for each."""
    yield document.removesuffix(_END) + b',\n "rounds": ['
    before = b"\n"
    for line in lines:
        yield before + line
        before = b",\n"
    yield b"\n ]" + _END


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(document), indent=1, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """The value with null for each number that JSON doesn't have: the loss of a training that went wrong."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
