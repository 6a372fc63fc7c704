"""What the scripts share that train until a test accuracy is reached (bench/jobs/digits.py): data, and epochs with tests.

The same model, optimizer and mini-batches of the same size as edgeswarm's job has. Rank 0 prints a line of JSON an epoch: seconds
of training so far, when (time.time()), and the accuracy; on trial none of that, but what other peers print of a few rounds
(rounds.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from bench.jobs.digits import Digits, Task
from bench.peers.rounds import arguments, leave, time_rounds

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))  # where jobs find what lies beside them


def epoch_arguments(description: str | None) -> argparse.ArgumentParser:
    parser = arguments(description)
    parser.add_argument("--seed", type=int, default=1, help="of the initial weights and of the samples' order")
    parser.add_argument("--trial", action="store_true", help="times some rounds instead")
    return parser


def all_of(task: Task, *, test: bool) -> tuple[Tensor, Tensor]:
    """Inputs, and their digits."""
    dataset = Digits(test=test)
    items = [task.transform(dataset[index], torch.Generator()) for index in range(len(dataset))]
    return torch.stack([image for image, _ in items]), torch.tensor([digit for _, digit in items])


def train_until(
    given: argparse.Namespace,
    task: Task,
    count: int,
    *,
    train_round: Callable[[Tensor], None],
    test: Callable[[], float],
) -> NoReturn:
    """Epochs of whole mini-batches, until the test says that the task's target is reached or its epochs are over.
    Ends the process.

    count: samples to train on. train_round: gets the places of a mini-batch. test: the accuracy; called at all ranks, and that of
    rank 0 counts.
    """
    if given.trial:
        time_rounds(given, lambda: train_round(torch.randperm(count)[: given.mini_batch]))
    if given.world > 1:
        dist.barrier()  # who is slow to get ready is no part of the first epoch
    trained_seconds = 0.0
    go_on = torch.ones(1)
    orders = torch.Generator().manual_seed(given.seed)
    for _ in range(task.epochs):
        begin = time.perf_counter()
        order = torch.randperm(count, generator=orders)
        for place in range(0, count - given.mini_batch + 1, given.mini_batch):
            train_round(order[place : place + given.mini_batch])
        trained_seconds += time.perf_counter() - begin
        reached = test()
        if given.rank == 0:
            told = {"trained_seconds": trained_seconds, "when": time.time(), "accuracy": reached}
            print(json.dumps(told), flush=True)
            go_on[0] = reached < task.target
        if given.world > 1:
            dist.broadcast(go_on, 0)
        if not go_on.item():
            break
    leave(given)
