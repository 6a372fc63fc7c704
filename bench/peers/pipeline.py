"""torch.distributed.pipelining's Schedule1F1B over gloo, one stage on each rank."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bench.peers.blocks import blocks_of, optimizer, samples
from bench.peers.rounds import arguments, join, laid_out, memory_format, time_rounds

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

TEST_AT_ONCE = 64


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


class Pipeline:
    """This rank's stage. module: its blocks; in training mode but while `outputs_of` runs.

    given: the command line, with `add_cuts`. blocks: of the whole model. optimizer: made of a module with weights.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        blocks: Sequence[nn.Module],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    ) -> None:
        cuts = [int(cut) for cut in given.cuts.split(",")]
        mine = blocks[cuts[given.rank] : cuts[given.rank + 1]]
        inside, between = memory_format(given.channels_last), torch.contiguous_format
        first, last = LaidOut(activations=inside, gradients=between), LaidOut(activations=between, gradients=inside)
        self.module = laid_out(nn.Sequential(first, *mine, last), given.channels_last)
        self._rank, self._world = given.rank, given.world
        micro_batches = given.mini_batch // given.micro_batch
        _, self._training = self._scheduled(micro_batches, loss=nn.CrossEntropyLoss())
        self._testing: tuple[PipelineStage, Schedule1F1B, int] | None = None
        self._optimizer = optimizer(self.module) if list(self.module.parameters()) else None

    def _scheduled(self, micro_batches: int, *, loss: nn.Module | None = None) -> tuple[PipelineStage, Schedule1F1B]:
        """A stage of its own, and its schedule. loss: None where nothing is trained."""
        # Here, since it is slow to import, and a rank alone needs it: not who tests the rest of this module.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = PipelineStage(self.module, self._rank, self._world, torch.device("cpu"))
        return stage, Schedule1F1B(stage, micro_batches, loss_fn=loss)

    def make_ready(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        """Once, before training: a round of which nothing stays. A schedule's first one works out shapes by a forward of its own,
        of whatever memory holds on all ranks but the first, which moves the running statistics of batch norms.
        """
        kept = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            self._forwards_and_backwards(inputs, targets)
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                buffer.copy_(kept[name])

    def train_round(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        """inputs, targets: of a mini-batch; only the first rank needs the former, only the last one the latter."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        self._forwards_and_backwards(inputs, targets)
        if self._optimizer is not None:
            self._optimizer.step()

    def _forwards_and_backwards(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        if self._rank == 0:
            self._training.step(inputs)
        elif self._rank == self._world - 1:
            self._training.step(target=targets)
        else:
            self._training.step()

    def outputs_of(self, inputs: Tensor | None, count: int) -> Tensor | None:
        """Of the whole model in evaluation, without gradients; the last rank has them.

        inputs: at the first rank. count: of these, as many each time.
        """
        if self._testing is None:  # one of its own: a schedule that changes between both works out its shapes each time
            micro_batches = max(self._world, math.ceil(count / TEST_AT_ONCE))
            self._testing = *self._scheduled(micro_batches), micro_batches
        stage, schedule, micro_batches = self._testing
        self.module.eval()
        with torch.no_grad():
            outputs: Tensor | None = schedule.step(*(() if inputs is None else (filled_up(inputs, micro_batches),)))
        self.module.train()
        stage.clear_runtime_states()  # activations, which a backward would have let go
        return None if outputs is None else outputs[:count]


def filled_up(inputs: Tensor, parts: int) -> Tensor:
    """With some of them again at the end, for parts of one size."""
    return torch.cat([inputs, inputs[: -len(inputs) % parts]])


def add_cuts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cuts", required=True, help="rank r has blocks cuts[r] to cuts[r + 1], with commas")


def main() -> None:
    parser = arguments(__doc__)
    add_cuts(parser)
    given = parser.parse_args()
    blocks = blocks_of(given.model)
    join(given)
    pipeline = Pipeline(given, blocks, optimizer)
    del blocks  # those of other ranks
    inputs, targets = samples(given.model, given.mini_batch, memory_format=memory_format(given.channels_last))
    is_first, is_last = given.rank == 0, given.rank == given.world - 1
    mine = inputs if is_first else None, targets if is_last else None
    del inputs, targets
    time_rounds(given, lambda: pipeline.train_round(*mine))


if __name__ == "__main__":
    main()
