"""What can be wrong with a job, found on the coordinator's machine before any device is asked for anything."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.item_copies import own_copy
from edgeswarm.job import SERVED, Dataset, Job, model_arguments
from edgeswarm.job_file import user_code, user_error
from edgeswarm.labels import label_error
from edgeswarm.model.draws import states_of_all_generators
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_misfits import collate_named, describe_batch
from edgeswarm.wire.tensor_samples import decode_items, encode_items, part_of

from .job_errors import invalid, with_article
from .loss_graph import nodes_of, other_weights, warnings_of_weights
from .loss_memory import loss_bytes, target_bytes
from .model_checks import PlainState, check_memory, modes_given_up
from .optimizer_checks import check_optimizer
from .row_checks import LEAST_ROWS, row_warnings

# Export takes one and two rows for constants; a few more cost nothing.
SAMPLE_ROWS = 4


@dataclass(frozen=True)
class CheckedJob:
    """A job that holds together.

    loss_counts: the loss returns (sum, count). dataset_length: items.
    inputs, targets: of a batch of up to four samples, collated and transformed, as the model and the loss get them.
    loss_bytes, target_bytes: of memory, what the loss takes of each sample, and its target (loss_memory.py). warnings: of what is
    odd and stops nothing.
    """

    loss_counts: bool
    dataset_length: int
    inputs: Any
    targets: Any
    loss_bytes: int = 0
    target_bytes: int = 0
    warnings: tuple[str, ...] = ()


def check_job(job: Job, model: torch.nn.Module, dataset: Dataset, *, folder: Path, batch_size: int) -> CheckedJob:
    """Try out every part of a job on a few samples. Leaves the model's buffers and the random state as they were.

    folder: of the job file, so that an error in it names the line. batch_size: the one in force, the job's own or the
    command line's. Raises EdgeswarmError (JOB_INVALID, JOB_FILE, DATA_FAILED) with a remedy.
    """
    if not isinstance(model, torch.nn.Module):
        invalid(f"model() returns {with_article(type(model).__name__)}, not a torch.nn.Module.", "Return the module.")
    with user_code(folder, "asking for the dataset's length"):
        length = len(dataset)
    if length < 1:
        invalid("The dataset is empty.", "Let dataset() return at least one sample.")
    if batch_size > length:
        invalid(
            f"batch_size is {batch_size}, and the dataset has only {length} samples.",
            f"Choose a batch_size of at most {length}.",
        )
    with torch.random.fork_rng(devices=[]), _unchanged_buffers(model):
        rows = min(SAMPLE_ROWS, batch_size)
        inputs, targets = sample_batch(job, dataset, range(rows), folder=folder)
        _check_inputs(inputs)
        of_modes = modes_given_up(model)
        state = PlainState(model)
        forward = _check_forward(job, model, inputs, targets, folder=folder, batch_size=batch_size)
        loss_counts, loss_memory, of_loss = forward
        check_memory(model)
        check_optimizer(job, model, folder=folder)
        _check_learning_rate_schedule(job, folder=folder)
        warnings = (
            *of_modes,
            *of_loss,
            *_changing_items(dataset, folder=folder),
            *_changing_state(state, model, inputs, folder=folder),
        )
        if rows >= LEAST_ROWS:
            # From the whole set: where it is sorted, the first are alike.
            spread = [row * (length - 1) // (rows - 1) for row in range(rows)]
            warnings += row_warnings(job, model, *sample_batch(job, dataset, spread, folder=folder))
    of_targets = target_bytes(targets, samples=rows)
    return CheckedJob(loss_counts, length, inputs, targets, loss_memory, of_targets, warnings)


def sample_batch(job: Job, dataset: Dataset, indices: Sequence[int], *, folder: Path) -> tuple[Any, Any]:
    """(inputs, targets) of these samples, as a worker would get them. Raises EdgeswarmError."""
    samples = []
    for index in indices:
        with user_code(folder, f"reading item {index} of the dataset"):
            item = part_of(dataset[index], SamplePart.BOTH)
        # As a device gets it: of a class of its own, a masked array say, a served one is a plain tensor or array there.
        item = decode_items(encode_items([item], SamplePart.BOTH))[0] if job.data == SERVED else own_copy(item)
        if job.transform is not None:
            doing = f"calling transform(sample, generator) with item {index} of the dataset, {describe_batch(item)},"
            with user_code(folder, doing), torch.no_grad():
                item = job.transform(item, torch.Generator().manual_seed(index))
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                invalid(
                    f"transform(sample, generator) returns {_pair_or_what(item)}, not a pair (inputs, targets).",
                    "Return both, the targets too where only the inputs change.",
                )
            item = part_of(item, SamplePart.BOTH)
        samples.append(item)
    inputs, targets = collate_named(samples, indices)
    return inputs, targets


def _check_inputs(inputs: Any) -> None:
    """Raises EdgeswarmError (JOB_INVALID) for texts and the like among the model's inputs, which devices can't compute on."""
    for path, leaf in pytree.tree_flatten_with_path(inputs)[0]:
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            invalid(
                f"The model's inputs have {with_article(type(leaf).__name__)} for each sample, at "
                f"inputs{pytree.keystr(path[:-1])}: no tensor.",
                "Leave it out of the inputs, or let the transform make numbers of it.",
            )


def _changing_items(dataset: Dataset, *, folder: Path) -> tuple[str, ...]:
    """A warning where reading an item twice gives two things, or draws: devices that need the same one would not get it, and what
    a device keeps is the same in all epochs.
    """
    with user_code(folder, "reading item 0 of the dataset a second time"):
        items = [dataset[0], dataset[0]]
        draws = True
        for _ in range(2):  # once it may have been another thread of ours
            before = states_of_all_generators()
            items[1] = dataset[0]
            draws = draws and states_of_all_generators() != before
    try:
        first, second = (encode_items([item], SamplePart.BOTH) for item in items)
    except EdgeswarmError:
        return ()  # it is never sent, and compares as it likes
    if first == second and not draws:
        return ()
    differs = "differs each time it is read" if first != second else "draws random numbers when it is read"
    return (
        f"Item 0 of the dataset {differs}: devices that need the same sample may get different ones, and keep what they get. "
        "Let the dataset return it as it is stored, and draw random numbers in the job's `transform`.",
    )


def _changing_state(state: PlainState, model: torch.nn.Module, inputs: Any, *, folder: Path) -> tuple[str, ...]:
    """A warning where each forward changes plain attributes. state: before the first one, of which one is done.

    What changes once is a thing that is made at first use, which changes nothing that follows.
    """
    changed = state.changed()
    if not changed:
        return ()
    args, kwargs = model_arguments(inputs)
    between = PlainState(model)
    with user_code(folder, "running the model a second time"):
        model(*args, **kwargs)
    again = [name for name in between.changed() if name in changed]
    if not again:
        return ()
    return (
        f"The model's forward changes {', '.join(again)}, which is no buffer: devices have it as it is now, for the whole "
        "training. Let what changes from round to round be computed from the model's inputs, or leave it out.",
    )


def _check_learning_rate_schedule(job: Job, *, folder: Path) -> None:
    """Whether the schedule gives a number for the first round."""
    if job.learning_rate_schedule is None:
        return
    with user_code(folder, "asking the learning-rate schedule for round 0"):
        factor = job.learning_rate_schedule(0)
        number = float(factor) if hasattr(factor, "__float__") else math.nan  # numpy's and torch's numbers are welcome
    if not math.isfinite(number):
        shown = repr(factor) if isinstance(factor, (str, float, type(None))) else with_article(type(factor).__name__)
        invalid(
            f"learning_rate_schedule(0) returns {shown}, not a number.",
            "Let it take the number of a round, from 0, and return the factor on the optimizer's learning rate.",
        )


def _pair_or_what(value: object) -> str:
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else with_article(type(value).__name__)


def _check_forward(
    job: Job, model: torch.nn.Module, inputs: Any, targets: Any, *, folder: Path, batch_size: int
) -> tuple[bool, int, tuple[str, ...]]:
    """Model and loss on a small batch; whether the loss is (sum, count), its memory of a sample, and warnings."""
    args, kwargs = model_arguments(inputs)
    model.train()
    try:
        output = model(*args, **kwargs)
    except (Exception, SystemExit) as error:  # it may raise anything
        doing = f"running the model on inputs {describe_batch(inputs)}{_module_at(model, error)}"
        told = user_error(error, folder, where="this machine", doing=doing)
        if _runs_on(model, inputs, batch_size):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model runs on batch_size={batch_size} samples and not on fewer: {told.message}",
                "Devices take parts of a batch: use x.shape[0] where a view, reshape, expand or loop has that number.",
                detail=told.detail,
            ) from error
        raise told from error
    with user_code(
        folder,
        f"running the loss on output {describe_batch(output)} and targets {describe_batch(targets)}",
        remedy="Let the loss fit the model's output, and the targets, as dataset and transform return them, the loss.",
    ):
        nodes = nodes_of(output)
        try:
            result = job.loss(output, targets)
        except Exception as error:
            labels = label_error(error, output, targets, indices=range(SAMPLE_ROWS), where="this machine")
            if labels is not None:
                raise labels from error
            raise
    counts = isinstance(result, tuple)
    if counts and len(result) != 2:
        invalid(f"The loss returns {len(result)} values.", "Return the mean over the rows, or (sum, count).")
    value, count = result if counts else (result, 1)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else with_article(type(value).__name__)
        )
        invalid(f"The loss returns {shape}.", "Return one number as a tensor: the mean over the rows, or (sum, count).")
    number = float(count)
    if not math.isfinite(number) or number < 0:
        invalid(f"The loss's count is {number}.", "Return (sum, count) with the number of what the sum is over.")
    if not bool(torch.isfinite(value.detach()).all()):
        invalid(
            f"The loss of the first {SAMPLE_ROWS} samples is {value.item()}.",
            "Look at the data's range and at the model's initial weights.",
        )
    if not value.requires_grad:
        invalid(
            "The loss doesn't depend on any parameter that is trained.",
            "Compute it from the model's output with torch operations, and leave requires_grad on for what is trained.",
        )
    results = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if results:
        with user_code(
            folder,
            f"running the backward of the loss, of output {describe_batch(output)} and targets {describe_batch(targets)}",
            remedy="Let the targets have the output's element type (.float() in the transform, say), and the loss write into "
            "nothing that it is computed from.",
        ):
            torch.autograd.grad(value, results, allow_unused=True, retain_graph=True)
    warnings = warnings_of_weights(other_weights(value, nodes), dict(model.named_parameters()))
    return counts, loss_bytes(job.loss, output, targets), warnings


def _runs_on(model: torch.nn.Module, inputs: Any, rows: int) -> bool:
    """Whether the model takes a batch of so many rows."""

    def repeated(value: Any) -> Any:
        return torch.cat([value] * (-(-rows // len(value))))[:rows] if isinstance(value, torch.Tensor) else value

    try:
        args, kwargs = model_arguments(pytree.tree_map(repeated, inputs))
        model(*args, **kwargs)
    except (Exception, SystemExit):  # it fails on these, too: then the number of rows isn't to blame
        return False
    return True


def _module_at(model: torch.nn.Module, error: BaseException) -> str:
    """`, in its module features.3 (Conv2d),`: the innermost one that was running; empty where it is the model itself."""
    paths = {id(module): f"{path} ({type(module).__name__})" for path, module in model.named_modules() if path}
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames
        found = paths.get(id(frame.f_locals.get(names[0])) if names else 0, found)
    return f", in its module {found}," if found else ""


@contextmanager
def _unchanged_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Puts running statistics back to what they were, and the training mode."""
    # They have none before the first forward.
    lazy = [module for module in model.modules() if any(map(is_lazy, module.buffers(recurse=False)))]
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        for module in lazy:
            if isinstance(module, torch.nn.modules.batchnorm._NormBase) and not any(map(is_lazy, module.buffers())):
                module.reset_running_stats()
        for module, mode in modes:
            module.training = mode
