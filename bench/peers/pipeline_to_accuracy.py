"""torch.distributed.pipelining's Schedule1F1B over gloo, until a test accuracy is reached; the same stages test, forward only."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from bench.jobs.digits import TASKS, Digits, accuracy, adamw
from bench.peers.blocks import cut_into_blocks
from bench.peers.epochs import all_of, epoch_arguments, train_until
from bench.peers.pipeline import Pipeline, add_cuts
from bench.peers.rounds import join


def main() -> None:
    parser = epoch_arguments(__doc__)
    add_cuts(parser)
    given = parser.parse_args()
    task = TASKS[given.model]
    torch.manual_seed(given.seed)
    blocks = cut_into_blocks(given.model, task.make())
    join(given)
    pipeline = Pipeline(given, blocks, lambda module: adamw(module.named_parameters()))
    inputs = targets = test_inputs = test_targets = None
    counts = torch.zeros(2, dtype=torch.int64)
    if given.rank == 0:  # which alone needs the images, as the last one alone needs the digits
        (inputs, _), (test_inputs, _) = all_of(task, test=False), all_of(task, test=True)
        counts = torch.tensor([len(inputs), len(test_inputs)])
    elif given.rank == given.world - 1:
        targets, test_targets = Digits().digits, Digits(test=True).digits
    dist.broadcast(counts, 0)
    count, test_count = counts.tolist()

    def train_round(chosen: Tensor) -> None:
        pipeline.train_round(*(None if some is None else some[chosen] for some in (inputs, targets)))

    def test() -> float:
        outputs = pipeline.outputs_of(test_inputs, test_count)
        reached = torch.zeros(1)
        if outputs is not None and test_targets is not None:  # at the last rank
            reached[0] = accuracy(outputs, test_targets)
        dist.broadcast(reached, given.world - 1)
        return float(reached)

    pipeline.make_ready(*(None if some is None else some[: given.mini_batch] for some in (inputs, targets)))
    train_until(given, task, count, train_round=train_round, test=test)


if __name__ == "__main__":
    main()
