"""Whether a job's model and loss treat each sample by itself, as they must where devices compute on parts of a batch.

    one go       f(a b c d)              loss
    in parts     f(a b)    f(c d)        the mean of both losses, or the sums and the counts added up

Similarities of all with all, a mean over the batch, class weights, labels that are left out of a mean: each device would do so
over what it has, and the training would depend on the plan. Evaluation mode, so that dropout and what normalises over a batch
while it trains (README: BatchNorm) are no matter. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from edgeswarm.errors import said_by
from edgeswarm.job import Job, model_arguments
from edgeswarm.model.draws import states_of_all_generators

LEAST_ROWS = 4
# Kernels for other numbers of rows add up in another order: far more than that, and far less than any of what is looked for.
_SAME = 1e-3
_EXACT = 1e-7  # of one computation that is done twice


class _NotRows(Exception):
    """Something can't be cut into rows, or draws: nothing is known then."""


def row_warnings(job: Job, model: torch.nn.Module, inputs: Any, targets: Any) -> tuple[str, ...]:
    """Warnings; none where it can't be told. inputs, targets: of a batch of LEAST_ROWS samples or more, as model and loss get it.

    Leaves the model in evaluation mode. What the user's code raises says nothing here.
    """
    if any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules()):
        return ()  # it normalises over the batch here, too
    model.eval()
    with torch.no_grad():
        try:
            rows = _count(inputs)
            if rows < LEAST_ROWS:
                return ()
            parts = ((0, rows // 2), (rows // 2, rows))
            # One half at a time: of a language model one of them takes gigabytes.
            whole = _run(model, inputs)
            losses = []
            for first, end in parts:
                output = _run(model, _rows(inputs, first, end))
                if _differs(whole, output, first=first, end=end, rows=rows):
                    again = _run(model, _rows(inputs, first, end))
                    return () if _differs(output, again, first=0, end=end - first, rows=end - first) else (_MIXES,)
                losses.append(_told(job.loss, output, _rows(targets, first, end)))
                del output
            before = states_of_all_generators()
            once, twice = (_told(job.loss, whole, targets) for _ in range(2))
            draws = states_of_all_generators() != before
        except (Exception, SystemExit):  # as anything of the user's may
            return ()
        if not math.isfinite(once[0]):
            return ()
        if not math.isclose(once[0], twice[0], rel_tol=_EXACT):
            return () if draws else (_KEEPS.format(once=once[0], twice=twice[0]),)
        if not all(math.isfinite(number) for number, _ in losses):
            return (_NOTHING_COUNTS.format(rows=rows, halves=_shown(losses)),)
        if not _adds_up(once, losses, [end - first for first, end in parts]):
            told = _LOSS.format(rows=rows, whole=once[0], halves=_shown(losses))
            return (told if once[1] is None else _COUNTED_LOSS,)
        return _of_one_sample(job.loss, whole, targets, rows=rows)


_MIXES = (
    "The model's output for a sample depends on the other samples of its batch: a device has some of them alone, and the "
    "training depends on how they are shared. Let each row of the output come from its row of the input."
)
_LOSS = (
    "The loss of {rows} samples, {whole:.4g}, is not the mean of those of its halves, {halves}: each device computes it over "
    "samples of its own, and the training depends on how they are shared. Where rows don't count alike (class weights, "
    "ignore_index), return (sum, count): the sum over the rows, and the sum of their weights."
)
_NOTHING_COUNTS = (
    "The loss of some samples by themselves is no number: of {rows} samples' halves it is {halves}. A device may have such "
    "samples alone, and the round's loss, or all weights, are no numbers then. Where labels are left out of a mean "
    '(ignore_index), return (sum, count): the sum over the rows that count (reduction="sum"), and how many they are.'
)
_KEEPS = (
    "The loss of the same samples is {once:.6g} and, called again, {twice:.6g}, though it draws nothing from torch, numpy or "
    "random: it keeps something from call to call, or has a generator of its own. It is called for each part of a mini-batch, "
    "on several devices and in evaluations, and begins anew with --resume. Compute it from its arguments alone."
)
_COUNTED_LOSS = (
    "The loss returns (sum, count), and those of two halves don't add up to those of all samples: each device computes them over "
    "samples of its own, and the training depends on how they are shared. Let both be sums over the rows."
)


def _of_one_sample(loss: Callable[[Any, Any], Any], output: Any, targets: Any, *, rows: int) -> tuple[str, ...]:
    """A warning where the loss takes several samples and not one."""
    try:
        if _count(output) != rows:
            return ()
        one, two = ((_rows(output, 0, end), _rows(targets, 0, end)) for end in (1, 2))
        loss(*two)
    except (Exception, SystemExit):  # what isn't cut at its samples, too
        return ()
    try:
        loss(*one)
    except (Exception, SystemExit) as error:
        return (
            f"The loss fails for one sample ({said_by(error)}): a device may have one. Let it keep the dimension of the samples, "
            "squeeze(1) in place of squeeze(), say.",
        )
    return ()


def _shown(losses: Sequence[tuple[float, float | None]]) -> str:
    return ", ".join(f"{value:.4g}" for value, _ in losses)


def _run(model: torch.nn.Module, inputs: Any) -> Any:
    args, kwargs = model_arguments(inputs)
    return model(*args, **kwargs)


def _told(loss: Callable[[Any, Any], Any], output: Any, targets: Any) -> tuple[float, float | None]:
    """The loss, or the sum and the count."""
    result = loss(output, targets)
    return (float(result[0]), float(result[1])) if isinstance(result, tuple) else (float(result), None)


def _count(inputs: Any) -> int:
    """How many rows all tensors have. Raises _NotRows where they differ, or there is something else."""
    counts = {len(leaf) if isinstance(leaf, torch.Tensor) and leaf.dim() else 0 for leaf in pytree.tree_leaves(inputs)}
    if len(counts) != 1:
        raise _NotRows
    return counts.pop()


def _rows(value: Any, first: int, end: int) -> Any:
    """These rows of each tensor. Raises _NotRows where there is something else."""

    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            raise _NotRows
        return leaf[first:end]

    return pytree.tree_map(cut, value)


def _differs(whole: Any, part: Any, *, first: int, end: int, rows: int) -> bool:
    """Whether rows of the whole aren't what the part has, by tensors whose first dimension is that of the samples."""
    for of_whole, of_part in zip(pytree.tree_leaves(whole), pytree.tree_leaves(part), strict=True):
        if not (isinstance(of_whole, torch.Tensor) and of_whole.dim() and len(of_whole) == rows):
            continue
        if not (isinstance(of_part, torch.Tensor) and of_part.dim() and len(of_part) == end - first):
            continue
        if of_part.shape[1:] != of_whole.shape[1:] or not _close(of_whole[first:end], of_part):
            return True
    return False


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    # In their own precision, for another takes a copy of all of it. What isn't finite says nothing.
    return not bool(torch.linalg.vector_norm(one - other) > _SAME * torch.linalg.vector_norm(one) + 1e-12)


def _adds_up(
    whole: tuple[float, float | None], parts: Sequence[tuple[float, float | None]], weights: Sequence[int]
) -> bool:
    if whole[1] is None:
        pairs = [(whole[0] * sum(weights), sum(value * rows for (value, _), rows in zip(parts, weights, strict=True)))]
    else:
        pairs = [
            (whole[0], sum(value for value, _ in parts)),
            (whole[1], sum(count or 0.0 for _, count in parts)),
        ]
    return all(abs(one - other) <= _SAME * max(abs(one), abs(other)) + 1e-6 for one, other in pairs)
