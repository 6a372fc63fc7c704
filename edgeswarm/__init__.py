"""edgeswarm: train one PyTorch model over the small computers of one network. What a job file and its user need is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .job import Job

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ["Job", "__version__", "load_optimizer"]

__version__ = "0.1.0"


def load_optimizer(path: str | Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Give a plain PyTorch optimizer the state that a training ended with.

        model.load_state_dict(safetensors.torch.load_file(f"{folder}/model.safetensors"))
        rounds = edgeswarm.load_optimizer(folder, model, optimizer)

    path: the training's result, or the optimizer.json in it. optimizer: made by the same code as the job's, over all of the
    model's parameters. Its groups have the values of the last round, "initial_lr" among them.
    Returns how many rounds were trained: for a schedule, `LambdaLR(optimizer, factor, last_epoch=rounds - 1)`.
    Raises EdgeswarmError for files that can't be read, ValueError where model or optimizer are not those of the training.
    """
    from . import optimizer_file  # not at the top: importing this package loads no torch

    return optimizer_file.load_optimizer(path, model, optimizer)
