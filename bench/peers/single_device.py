"""One device alone: a plain loop that adds up gradients over micro-batches."""

from __future__ import annotations

from torch import nn

from bench.peers.blocks import optimizer, samples, whole_model
from bench.peers.rounds import arguments, join, laid_out, memory_format, time_rounds


def main() -> None:
    given = arguments(__doc__).parse_args()
    model = laid_out(whole_model(given.model), given.channels_last)
    join(given)
    step = optimizer(model)
    loss_sum = nn.CrossEntropyLoss(reduction="sum")
    inputs, targets = samples(given.model, given.mini_batch, memory_format=memory_format(given.channels_last))

    def train_round() -> None:
        step.zero_grad()
        for begin in range(0, given.mini_batch, given.micro_batch):
            part = slice(begin, begin + given.micro_batch)
            (loss_sum(model(inputs[part]), targets[part]) / given.mini_batch).backward()
        step.step()

    time_rounds(given, train_round)


if __name__ == "__main__":
    main()
