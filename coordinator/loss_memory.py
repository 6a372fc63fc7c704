"""What a job's loss takes of a worker's memory, seen on a few samples.

    output | what the loss saves: log-softmax, say | a gradient of what it saves | the output's gradient

No layer has the loss, which the worker of the last stage runs beside its layers: a language model's is as large as its output,
a number for each word that there is. The output and its gradient are among what the last layer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def loss_bytes(loss: Callable[[Any, Any], object], output: object, targets: object) -> int:
    """Of each sample, what a loss saves for its backward, and one more of the output's size that comes and goes in it.

    output: of a model, with a gradient; its first tensor has a row for each sample. The loss is run once, for this alone.
    0 where that can't be seen: torch.func's transforms let nobody look.
    """
    outputs = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    try:
        known = {_storage(tensor) for tensor in (*_tensors(output), *_tensors(targets))}
        saved = _saved_bytes(lambda: loss(output, targets), known=known)
    except Exception:  # it ran without being watched, and does so in a training
        return 0
    if not outputs or not saved:
        return 0
    rows = len(outputs[0]) if outputs[0].dim() else 1
    return (saved + sum(tensor.nbytes for tensor in outputs)) // max(1, rows)


def target_bytes(targets: object, *, samples: int) -> int:
    """Of each sample, its target, about. targets: of so many samples."""
    return sum(tensor.nbytes for tensor in _tensors(targets)) // samples


def _saved_bytes(function: Callable[[], object], *, known: set[int]) -> int:
    """Of what its operations save for their backward; known: storages that are there anyway."""
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if _storage(tensor) not in known:
            saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        # Without its history: an operation that saves what it made would keep itself alive.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    del result  # until here all that was saved is alive, and no two of it lie at one place
    return sum(saved.values())


def _storage(tensor: torch.Tensor) -> int:
    """Tells tensors apart that live at the same time; views of one are one. Raises for tensors without storage."""
    return tensor.untyped_storage().data_ptr()


def _tensors(value: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
