"""torch.distributed.pipelining's Schedule1F1B over gloo, one stage on each rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from bench.peers.blocks import blocks_of, optimizer, samples
from bench.peers.rounds import arguments, join, laid_out, memory_format, time_rounds


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activations: torch.memory_format, gradients: torch.memory_format
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return _as_images(x, activations)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _as_images(gradient, ctx.gradients), None, None


def _as_images(x: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """layout: of what has images' four dimensions."""
    return x.contiguous(memory_format=layout if x.dim() == 4 else torch.contiguous_format)


class LaidOut(nn.Module):
    """Before the first block and behind the last one: gloo sends what is contiguous and nothing else, while images between the
    blocks lie as these compute them best. activations, gradients: how they lie from here on, each in its direction.
    """

    def __init__(self, *, activations: torch.memory_format, gradients: torch.memory_format) -> None:
        super().__init__()
        self._layouts = activations, gradients

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        found: torch.Tensor = _BothWays.apply(x, *self._layouts)  # type: ignore[no-untyped-call]
        return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cuts", required=True, help="rank r has blocks cuts[r] to cuts[r + 1], with commas")
    given = parser.parse_args()
    join(given)
    cuts = [int(cut) for cut in given.cuts.split(",")]
    blocks = blocks_of(given.model)[cuts[given.rank] : cuts[given.rank + 1]]
    inside, between = memory_format(given.channels_last), torch.contiguous_format
    first, last = LaidOut(activations=inside, gradients=between), LaidOut(activations=between, gradients=inside)
    module = laid_out(nn.Sequential(first, *blocks, last), given.channels_last)
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
