"""A plain loop, or DistributedDataParallel with shares by speed, until a test accuracy is reached; rank 0 tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.jobs.digits import TASKS, accuracy, adamw
from bench.peers.epochs import all_of, epoch_arguments, train_until
from bench.peers.rounds import in_micro_batches, join, laid_out, memory_format
from bench.peers.weighted_share import backward_of_share

_TEST_AT_ONCE = 64


def main() -> None:
    parser = epoch_arguments(__doc__)
    parser.add_argument("--shares", default="", help="samples of each rank, with commas; none for a device alone")
    given = parser.parse_args()
    task = TASKS[given.model]
    shares = [int(share) for share in given.shares.split(",")] if given.shares else [given.mini_batch]
    begin_of_mine = sum(shares[: given.rank])
    torch.manual_seed(given.seed)
    plain = laid_out(task.make(), given.channels_last)
    inputs, digits = all_of(task, test=False)
    inputs = inputs.contiguous(memory_format=memory_format(given.channels_last))
    join(given)
    model: nn.Module = plain
    if given.world > 1:
        model = DistributedDataParallel(plain, broadcast_buffers=False, gradient_as_bucket_view=True)
    step = adamw(model.named_parameters())
    test_set = all_of(task, test=True) if given.rank == 0 else None

    def train_round(chosen: Tensor) -> None:
        mine = chosen[begin_of_mine : begin_of_mine + shares[given.rank]]
        step.zero_grad()
        parts = [(inputs[part], digits[part]) for part in in_micro_batches(mine, given.micro_batch)]
        backward_of_share(model, parts, ranks=given.world, samples_of_all=len(chosen))
        step.step()

    def test() -> float:
        if test_set is None:
            return 0.0
        test_inputs, test_digits = test_set
        plain.eval()
        with torch.no_grad():
            outputs = torch.cat([plain(part) for part in torch.split(test_inputs, _TEST_AT_ONCE)])
        plain.train()
        return float(accuracy(outputs, test_digits))

    train_until(given, task, len(inputs), train_round=train_round, test=test)


if __name__ == "__main__":
    main()
