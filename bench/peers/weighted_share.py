"""One rank's backward of a mini-batch of which each rank has a share, for DistributedDataParallel.

Shares may differ: a rank's loss is its sum over its samples, divided by the count of all and times the ranks, since DDP
takes the mean of the ranks' gradients. A share is computed in micro-batches, and only the last one's backward communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_LOSS_SUM = nn.CrossEntropyLoss(reduction="sum")


def backward_of_share(
    model: nn.Module, parts: Sequence[tuple[Tensor, Tensor]], *, ranks: int, samples_of_all: int
) -> None:
    """Adds to the parameters' gradients those of the whole mini-batch's mean loss.

    model: one that isn't DDP's is by itself, and `ranks` is 1. parts: inputs and targets of this rank's micro-batches.
    """
    weight = ranks / samples_of_all
    for number, (inputs, targets) in enumerate(parts, 1):
        if isinstance(model, DistributedDataParallel) and number < len(parts):
            quiet: AbstractContextManager[None] = model.no_sync()
        else:
            quiet = nullcontext()
        with quiet:
            (_LOSS_SUM(model(inputs), targets) * weight).backward()
