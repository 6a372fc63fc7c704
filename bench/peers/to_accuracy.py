"""A plain loop, or DistributedDataParallel with shares by speed, until a test accuracy is reached (bench/jobs/digits.py).

The same model, optimizer and mini-batches of the same size as edgeswarm's job; after each epoch rank 0 tests.
It prints a line of JSON an epoch: seconds of training so far, when (time.time()), and the accuracy; on trial none of that, but
what other peers print of a few rounds (rounds.py).
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.peers.rounds import arguments, join, laid_out, memory_format, time_rounds

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))  # where jobs find it, too

from digits import TASKS, Digits, Task, accuracy, adamw  # type: ignore[import-not-found]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shares", default="", help="samples of each rank, with commas; none for a device alone")
    parser.add_argument("--seed", type=int, default=1, help="of the initial weights and of the samples' order")
    parser.add_argument("--trial", action="store_true", help="times some rounds instead")
    given = parser.parse_args()
    join(given)
    task: Task = TASKS[given.model]
    shares = [int(share) for share in given.shares.split(",")] if given.shares else [given.mini_batch]
    begin_of_mine = sum(shares[: given.rank])
    torch.manual_seed(given.seed)
    plain = laid_out(task.make(), given.channels_last)
    model: nn.Module = DistributedDataParallel(plain, broadcast_buffers=False) if given.world > 1 else plain
    step = adamw(model.named_parameters())
    loss_sum = nn.CrossEntropyLoss(reduction="sum")
    inputs, digits = _all_of(task, test=False)
    inputs = inputs.contiguous(memory_format=memory_format(given.channels_last))
    test = _all_of(task, test=True)

    def train_round(chosen: Tensor) -> None:
        mine = chosen[begin_of_mine : begin_of_mine + shares[given.rank]]
        weight = given.world / len(chosen)
        step.zero_grad()
        for begin in range(0, len(mine), given.micro_batch):
            part = mine[begin : begin + given.micro_batch]
            is_last = begin + given.micro_batch >= len(mine)
            with nullcontext() if is_last or given.world == 1 else model.no_sync():  # type: ignore[operator]
                (loss_sum(model(inputs[part]), digits[part]) * weight).backward()
        step.step()

    if given.trial:
        time_rounds(given, lambda: train_round(torch.randperm(len(inputs))[: given.mini_batch]))
        return
    trained_seconds = 0.0
    go_on = torch.ones(1)
    orders = torch.Generator().manual_seed(given.seed)
    for _ in range(task.epochs):
        begin = time.perf_counter()
        order = torch.randperm(len(inputs), generator=orders)
        model.train()
        for place in range(0, len(order) - given.mini_batch + 1, given.mini_batch):
            train_round(order[place : place + given.mini_batch])
        trained_seconds += time.perf_counter() - begin
        if given.rank == 0:
            reached = _tested(plain, *test)
            told = {"trained_seconds": trained_seconds, "when": time.time(), "accuracy": reached}
            print(json.dumps(told), flush=True)
            go_on[0] = reached < task.target
        if given.world > 1:
            dist.broadcast(go_on, 0)
        if not go_on.item():
            break
    if given.world > 1:
        dist.barrier()
        dist.destroy_process_group()


def _all_of(task: Task, *, test: bool) -> tuple[Tensor, Tensor]:
    dataset = Digits(test=test)
    items = [task.transform(dataset[index], torch.Generator()) for index in range(len(dataset))]
    return torch.stack([image for image, _ in items]), torch.tensor([digit for _, digit in items])


def _tested(model: nn.Module, inputs: Tensor, digits: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in torch.split(inputs, 64)])
    return float(accuracy(outputs, digits))


if __name__ == "__main__":
    main()
