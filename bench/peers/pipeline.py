"""torch.distributed.pipelining's Schedule1F1B over gloo, one stage on each rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from bench.peers.blocks import blocks_of, optimizer, samples
from bench.peers.rounds import arguments, join, laid_out, time_rounds


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


class _Contiguous(nn.Module):
    """Activations and gradients: gloo sends nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _BothWays.apply(x) if x.is_floating_point() else x  # type: ignore[no-untyped-call]
        return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cuts", required=True, help="rank r has blocks cuts[r] to cuts[r + 1], with commas")
    given = parser.parse_args()
    join(given)
    cuts = [int(cut) for cut in given.cuts.split(",")]
    blocks = blocks_of(given.model)[cuts[given.rank] : cuts[given.rank + 1]]
    module = laid_out(nn.Sequential(_Contiguous(), *blocks, _Contiguous()), given)
    step = optimizer(module) if list(module.parameters()) else None
    stage = PipelineStage(module, given.rank, given.world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=given.mini_batch // given.micro_batch, loss_fn=nn.CrossEntropyLoss())
    inputs, targets = samples(given.model, given.mini_batch)

    def train_round() -> None:
        if step is not None:
            step.zero_grad()
        if given.rank == 0:
            schedule.step(inputs)
        elif given.rank == given.world - 1:
            schedule.step(target=targets)
        else:
            schedule.step()
        if step is not None:
            step.step()

    time_rounds(given, train_round)


if __name__ == "__main__":
    main()
