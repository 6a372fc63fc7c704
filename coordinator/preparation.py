"""The user's job on the coordinator's machine: loaded, checked, built once under its seed, exported, written by layers.

Imports torch.

    job file ── load ──> LoadedJob ── export ──> PreparedModel + work folder with layer-<i>.safetensors of round 0
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeswarm.bundle import Bundle, make_bundle
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Dataset, Job, model_arguments
from edgeswarm.job_file import load_job, user_error
from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.snapshot import LayerState, write_layer_file

from .job_checks import check_job
from .last_round import check_batches

PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class LoadedJob:
    """job: with what the command line set over it. folder: of the job file, the user's own."""

    job: Job
    bundle: Bundle
    folder: Path


@dataclass(frozen=True)
class PreparedModel:
    """What is known of the model once it is gone from memory.

    dtype: of its parameters. optimizer_state_factor: bytes of optimizer state per byte of trained parameters.
    loss_counts: the loss returns (sum, count). wire_dtype: as the job wants it. unused: the tensors that no layer uses,
    which keep their values. warnings: of what is odd in the job and stops nothing.
    """

    layer_graph: LayerGraph
    dtype: str
    dataset_length: int
    loss_counts: bool
    optimizer_state_factor: float
    wire_dtype: str | None
    unused: dict[str, torch.Tensor]
    warnings: tuple[str, ...] = ()

    @property
    def parameter_bytes(self) -> int:
        return sum(spec.bytes for spec in self.layer_graph.tensors.values() if spec.kind == "parameter")


def load(path: Path, *, epochs: int | None = None, batch_size: int | None = None, seed: int | None = None) -> LoadedJob:
    """Run the user's file. epochs, batch_size, seed: over the job's own where given.

    Raises EdgeswarmError: JOB_FILE, MODULE_MISSING, JOB_INVALID.
    """
    folder = path.resolve().parent
    job = load_job(folder, path.name)
    try:
        job = dataclasses.replace(
            job,
            epochs=job.epochs if epochs is None else epochs,
            batch_size=job.batch_size if batch_size is None else batch_size,
            seed=job.seed if seed is None else seed,
        )
    except ValueError as error:
        raise EdgeswarmError(ErrorCode.JOB_INVALID, f"{error}.", "Correct the value on the command line.") from error
    return LoadedJob(job, make_bundle(path, job.files), folder)


def prepare(loaded: LoadedJob, dataset: Dataset, *, snapshot_folder: Path) -> PreparedModel:
    """Build the model under the job's seed, check the job, export it, and write the state of round 0 by layers.

    Raises EdgeswarmError: JOB_INVALID, JOB_FILE, DATA_FAILED, EXPORT_FAILED, OUTPUT_FAILED.
    """
    job, folder = loaded.job, loaded.folder
    # The same two lines in the user's own script give the same initial weights.
    torch.manual_seed(job.seed)
    try:
        model = job.model()
    except Exception as error:  # the user's code may raise anything
        raise user_error(error, folder, where="this machine", doing="building the model") from error
    checked = check_job(job, model, dataset, folder=folder, batch_size=job.batch_size)
    dtype = _precision(model)
    args, kwargs = model_arguments(checked.inputs)
    model.train()
    exported = export_model(model, args, kwargs)
    check_batches(exported.layer_graph.layers, dataset_length=checked.dataset_length, batch_size=job.batch_size)
    tensors = _tensors(model, exported)
    _write_layers(exported.layer_graph, tensors, snapshot_folder)
    return PreparedModel(
        layer_graph=exported.layer_graph,
        dtype=dtype,
        dataset_length=checked.dataset_length,
        loss_counts=checked.loss_counts,
        optimizer_state_factor=_optimizer_state_factor(loaded, model),
        wire_dtype=job.wire_dtype,
        unused={name: tensors[name].clone() for name in exported.layer_graph.unused},
        warnings=checked.warnings,
    )


def open_dataset(loaded: LoadedJob) -> Dataset:
    """The job's data set, for the checks on this machine. Raises EdgeswarmError (JOB_FILE) naming the user's line."""
    try:
        return loaded.job.open_dataset()
    except Exception as error:  # the user's code may raise anything
        raise user_error(error, loaded.folder, where="this machine", doing="opening the dataset") from error


def _precision(model: torch.nn.Module) -> str:
    """The dtype of the model's floating-point parameters."""
    found = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.dtype.is_floating_point}
    other = sorted(found.difference(PRECISIONS))
    if other:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"The model has parameters of {', '.join(other)}, which edgeswarm doesn't train yet.",
            "Build it in float32.",
        )
    return "float64" if found == {"float64"} else "float32"


def _tensors(model: torch.nn.Module, exported: ExportedModel) -> dict[str, torch.Tensor]:
    """Every tensor of the model under its original name."""
    return {
        **{name: buffer.detach() for name, buffer in model.named_buffers()},
        **{name: parameter.detach() for name, parameter in model.named_parameters()},
        **exported.constants,
    }


def layer_state(layer: Layer, tensors: dict[str, torch.Tensor], *, round_number: int) -> LayerState:
    """The state of one layer; its optimizer has none yet."""
    return LayerState(
        round=round_number,
        parameters={name: tensors[name] for name in layer.parameters},
        buffers={name: tensors[name] for name in layer.buffers},
        constants={name: tensors[name] for name in layer.constants},
    )


def _write_layers(layer_graph: LayerGraph, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        for layer in layer_graph.layers:
            write_layer_file(folder, layer.index, layer_state(layer, tensors, round_number=0))
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The model's layers can't be written to {folder}: {error.strerror or error}.",
            "Free space there, or set TMPDIR to a folder with more.",
        ) from error


def _optimizer_state_factor(loaded: LoadedJob, model: torch.nn.Module) -> float:
    """Bytes of state per byte of a trained parameter: one step on a copy of the smallest one that shows it.

    State of another size (AdamW's step counter) doesn't grow with the model and doesn't count.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    name, smallest = min(trained, key=lambda pair: (pair[1].numel() < 8, pair[1].numel()))
    copy = torch.nn.Parameter(smallest.detach().clone())
    copy.grad = torch.zeros_like(copy)
    try:
        optimizer = loaded.job.optimizer([(name, copy)])
        optimizer.step()
    except Exception as error:  # the user's code may raise anything
        raise user_error(error, loaded.folder, where="this machine", doing="taking an optimizer step") from error
    state = [
        value
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor) and value.numel() == copy.numel()
    ]
    return sum(value.numel() * value.element_size() for value in state) / (copy.numel() * copy.element_size())
