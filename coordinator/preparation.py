"""The user's job on the coordinator's machine: loaded, checked, built once under its seed, exported, written by layers.

Imports torch.

    job file ── load ──> LoadedJob ── export ──> PreparedModel + work folder with layer-<i>.safetensors of round 0, or
                                                 of the round of a checkpoint that the training goes on from
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeswarm.bundle import Bundle, make_bundle
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import LOCAL, SERVED, Dataset, Job, model_arguments
from edgeswarm.job_file import load_job, user_code
from edgeswarm.model.costs import with_costs
from edgeswarm.model.evaluation import EvaluationGraph, export_evaluation
from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.model.structure import flatten
from edgeswarm.process_memory import anonymous_bytes
from edgeswarm.samples import SampleOrder
from edgeswarm.snapshot import LayerState, write_layer_file

from .evaluation_checks import check_evaluation
from .events import BUILD_MODEL, EXPORT_EVALUATION, EXPORT_MODEL, TRY_JOB, WRITE_LAYERS
from .initial_weights import load_initial_weights
from .job_checks import check_job, sample_batch
from .last_round import check_batches
from .layer_files import LayerFiles
from .met_rows import COUNTED_SAMPLES, count_met_rows, tables_of_inputs
from .model_facts import MetRows, ServedSamples
from .optimizer_state import OptimizerState, try_optimizer_state
from .sample_size import item_bytes

PRECISIONS = ("float32", "float64")
# What the command's other threads may take meanwhile: less than this says nothing of the job.
_LEAST_HELD_BYTES = 8 << 20
# Of a round's samples, in a job of several epochs.
_WORTH_MEASURING_BYTES = 1 << 16


def _untold(_: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class LoadedJob:
    """job: with what the command line set over it. folder: of the job file, the user's own.

    held_bytes: of memory, of what the file imports and holds; each worker loads it, too.
    """

    job: Job
    bundle: Bundle
    folder: Path
    held_bytes: int = 0


@dataclass(frozen=True)
class OpenedData:
    """The job's data sets. evaluation: None where the job has none. held_bytes: of memory, of all of them."""

    training: Dataset
    evaluation: Dataset | None = None
    held_bytes: int = 0


@dataclass(frozen=True)
class PreparedModel:
    """What is known of the model once it is gone from memory.

    dtype: of its parameters. optimizer_state_factor: bytes of optimizer state per byte of trained parameters.
    loss_counts: the loss returns (sum, count). wire_dtype: as the job wants it. unused: the tensors that no layer uses,
    which keep their values. warnings: of what is odd in the job and stops nothing.
    served: what each sample costs on the way to the devices; None where they have them.
    met_rows: by table of words, how many rows of it how many samples meet.
    job_bytes: of memory, what the job's file takes in a worker, and its data sets where workers open them.
    loss_bytes, target_bytes: likewise, what the loss takes of each sample, and its target.
    evaluation_graph: the same layers in evaluation mode; None where nothing is evaluated. evaluation_length: items of that set.
    """

    layer_graph: LayerGraph
    dtype: str
    dataset_length: int
    loss_counts: bool
    optimizer_state_factor: float
    wire_dtype: str | None
    unused: dict[str, torch.Tensor]
    evaluation_graph: LayerGraph | None = None
    evaluation_length: int = 0
    warnings: tuple[str, ...] = ()
    served: ServedSamples | None = None
    met_rows: Mapping[str, MetRows] = dataclasses.field(default_factory=dict)
    job_bytes: int = 0
    loss_bytes: int = 0
    target_bytes: int = 0

    @property
    def checkpoint_bytes(self) -> int:
        """About what all layers and the state of their optimizer take."""
        specs = self.layer_graph.tensors.values()
        state_bytes = sum(spec.bytes for spec in specs if spec.trainable) * self.optimizer_state_factor
        return round(sum(spec.bytes for spec in specs if spec.kind != "constant") + state_bytes)

    @property
    def parameter_bytes(self) -> int:
        return sum(spec.bytes for spec in self.layer_graph.tensors.values() if spec.kind == "parameter")


def load(
    path: Path,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    wire_dtype: str | None = None,
) -> LoadedJob:
    """Run the user's file. epochs, batch_size, seed, wire_dtype: over the job's own where given.

    Raises EdgeswarmError: JOB_FILE, MODULE_MISSING, JOB_INVALID.
    """
    path = path.resolve()  # of a link the file that it names, with its neighbours
    folder = path.parent
    before = anonymous_bytes()
    job = load_job(folder, path.name)
    held_bytes = _held_since(before)
    try:
        job = dataclasses.replace(
            job,
            epochs=job.epochs if epochs is None else epochs,
            batch_size=job.batch_size if batch_size is None else batch_size,
            seed=job.seed if seed is None else seed,
            wire_dtype=job.wire_dtype if wire_dtype is None else wire_dtype,
        )
    except ValueError as error:
        raise EdgeswarmError(ErrorCode.JOB_INVALID, f"{error}.", "Correct the value on the command line.") from error
    return LoadedJob(job, make_bundle(path, job.files), folder, held_bytes)


def _held_since(before_bytes: int) -> int:
    """By how much more memory this process holds than before."""
    more = anonymous_bytes() - before_bytes
    return more if more >= _LEAST_HELD_BYTES else 0


def prepare(
    loaded: LoadedJob,
    opened: OpenedData,
    *,
    snapshot_folder: Path,
    checkpoint: LayerFiles | None = None,
    costs: Callable[[LayerGraph], LayerGraph] = with_costs,
    step: Callable[[str], AbstractContextManager[None]] = _untold,
) -> PreparedModel:
    """Build the model under the job's seed, check the job, export it, and write the state that its workers begin with by layers.

    checkpoint: what they begin with; None for round 0. costs: gives a graph those of its layers. step: around each of these, by
    its name in events.py.
    Raises EdgeswarmError: JOB_INVALID, JOB_FILE, WEIGHTS, DATA_FAILED, EXPORT_FAILED, OUTPUT_FAILED, CHECKPOINT.
    """
    job, folder = loaded.job, loaded.folder
    # The same two lines in the user's own script give the same initial weights.
    torch.manual_seed(job.seed)
    with step(BUILD_MODEL):
        with user_code(folder, "building the model"):
            model = job.model()
        warnings = load_initial_weights(job, model, folder=folder)
    with step(TRY_JOB):
        checked = check_job(job, model, opened.training, folder=folder, batch_size=job.batch_size)
        evaluation_length = 0
        if opened.evaluation is not None:
            evaluation_length = check_evaluation(
                job, model, opened.evaluation, training_inputs=checked.inputs, folder=folder
            )
        optimizer_state = try_optimizer_state(job, model, folder=folder)
    dtype = _precision(model)
    args, kwargs = model_arguments(checked.inputs)
    model.train()
    with step(EXPORT_MODEL):
        exported = export_model(model, args, kwargs, costs=costs)
    graph = exported.layer_graph
    check_batches(graph.layers, SampleOrder.of(job, checked.dataset_length))
    evaluation = None
    if opened.evaluation is not None:
        with step(EXPORT_EVALUATION):
            evaluation = export_evaluation(model, args, kwargs, training=graph)
    tensors = _tensors(model, exported)
    constants = _constants(exported, evaluation)
    states = (
        (layer_state(layer, tensors, constants[layer.index]) for layer in graph.layers)
        if checkpoint is None
        else _to_go_on(checkpoint, graph, constants, optimizer_state)
    )
    with step(WRITE_LAYERS):
        _write_layers(states, snapshot_folder)
    return PreparedModel(
        layer_graph=graph,
        dtype=dtype,
        dataset_length=checked.dataset_length,
        loss_counts=checked.loss_counts,
        optimizer_state_factor=optimizer_state.factor,
        wire_dtype=job.wire_dtype,
        unused={name: tensors[name].clone() for name in graph.unused},
        evaluation_graph=evaluation.layer_graph if evaluation is not None else None,
        evaluation_length=evaluation_length,
        warnings=(*warnings, *checked.warnings, *optimizer_state.warnings),
        served=_served(job, opened),
        met_rows=_met_rows(loaded, opened.training, graph),
        job_bytes=loaded.held_bytes + (opened.held_bytes if job.data == LOCAL else 0),
        loss_bytes=checked.loss_bytes,
        target_bytes=checked.target_bytes,
    )


def _met_rows(loaded: LoadedJob, dataset: Dataset, graph: LayerGraph) -> dict[str, MetRows]:
    """Counted in samples of the whole set, drawn alike each time. Nothing is read where the model has no table of words."""
    tables = tables_of_inputs(graph)
    if not tables:
        return {}
    batch_size, length = loaded.job.batch_size, len(dataset)
    with torch.random.fork_rng(devices=[]):
        indices = random.Random(0).sample(range(length), min(COUNTED_SAMPLES, batch_size))
        inputs, _ = sample_batch(loaded.job, dataset, indices, folder=loaded.folder)
    found = flatten(graph.input_structure, model_arguments(inputs))
    numbers = {index: found[index].numpy() for index in tables.values()}  # of the others some may be what numpy lacks
    return count_met_rows(graph, tables, numbers, mini_batch=batch_size)


def _served(job: Job, opened: OpenedData) -> ServedSamples | None:
    """None where the devices have the samples, or they are so few bytes that no link is worth a measurement for them."""
    if job.data != SERVED:
        return None
    item = opened.training[0]
    whole = item_bytes(item)
    if job.epochs > 1 and whole * job.batch_size < _WORTH_MEASURING_BYTES:
        return None
    if job.transform is not None or not isinstance(item, (tuple, list)) or len(item) != 2:
        # A transform takes whole items, wherever it runs.
        return ServedSamples(whole, whole, joint_bytes=whole, epochs=job.epochs)
    return ServedSamples(item_bytes(item[0]), item_bytes(item[1]), epochs=job.epochs)


def open_data(loaded: LoadedJob, *, evaluation: bool = True) -> OpenedData:
    """The job's data sets, for the checks on this machine. evaluation: whether that set is wanted, too; it is in any case where
    workers will open it, so that it is known what it holds.

    Raises EdgeswarmError (JOB_FILE) naming the user's line.
    """
    job = loaded.job
    before = anonymous_bytes()
    with user_code(loaded.folder, "opening the dataset"):
        training = job.open_dataset()
    if job.evaluation_dataset is None or not (evaluation or job.data == LOCAL):
        return OpenedData(training, held_bytes=_held_since(before))
    with user_code(loaded.folder, "opening the evaluation dataset"):
        other = job.open_evaluation_dataset()
    return OpenedData(training, other if evaluation else None, _held_since(before))


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


def _constants(exported: ExportedModel, evaluation: EvaluationGraph | None) -> dict[int, dict[str, torch.Tensor]]:
    """By layer: the constants of its training graph and of its evaluation graph."""
    found = {
        layer.index: {name: exported.constants[name] for name in layer.constants}
        for layer in exported.layer_graph.layers
    }
    if evaluation is not None:
        for layer in evaluation.layer_graph.layers:
            found[layer.index].update({name: evaluation.constants[name] for name in layer.constants})
    return found


def layer_state(layer: Layer, tensors: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor]) -> LayerState:
    """The state of one layer at round 0; its optimizer has none yet."""
    return LayerState(
        round=0,
        parameters={name: tensors[name] for name in layer.parameters},
        buffers={name: tensors[name] for name in layer.buffers},
        constants=constants,
    )


def _to_go_on(
    checkpoint: LayerFiles,
    graph: LayerGraph,
    constants: Mapping[int, Mapping[str, torch.Tensor]],
    optimizer_state: OptimizerState,
) -> Iterator[LayerState]:
    """The layers of a checkpoint. Raises EdgeswarmError (CHECKPOINT) where model or optimizer can't go on from them."""
    for state in checkpoint.to_go_on(graph, constants):
        if not checkpoint.of_this_job:
            optimizer_state.check_goes_on(state.optimizer)
        yield state


def _write_layers(states: Iterable[LayerState], folder: Path) -> None:
    try:
        for layer, state in enumerate(states):
            write_layer_file(folder, layer, state)
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The model's layers can't be written to {folder}: {error.strerror or error}.",
            "Free space there, or set TMPDIR to a folder with more.",
        ) from error
