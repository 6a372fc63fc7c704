"""Running statistics of batch normalisation, merged over micro-batches and replicas, moved once a round.

A stage leaves the running buffers alone; each forward pass yields count, mean and variance of its own samples. Sums of these
make the statistics of the whole mini-batch, the part between the means included:

    N = sum n_i      mean = sum n_i m_i / N      variance = sum n_i (v_i + m_i^2) / N - mean^2

The sums are taken in float64 of m_i less the running mean (the same on every replica), so that nothing cancels where
the mean is large against the deviation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from .values import BatchNorm


@dataclasses.dataclass(frozen=True)
class BatchStatistics:
    """What one batch norm saw in one forward pass.

    name: of its BatchNorm. count: elements of each channel. mean, variance_unbiased: [channels].
    """

    name: str
    count: int
    mean: torch.Tensor
    variance_unbiased: torch.Tensor


class BatchNormMerger:
    """Collects a round's statistics of one stage and applies them to its running buffers.

    buffers: the stage's, by original name; `apply` writes into them. The batch norms are those of the stage's graph, in order.
    All of them lie side by side, so that a model with many costs a few operations and not a few for each:

        | n of each batch norm | n_i m_i of every channel | n_i (v_i + m_i^2) of every channel |
    """

    def __init__(self, batch_norms: Sequence[BatchNorm], buffers: Mapping[str, torch.Tensor]) -> None:
        self._batch_norms = tuple(batch_norms)
        self._buffers = buffers
        self._channels = [batch_norm.channels for batch_norm in self._batch_norms]
        self._sizes = [len(self._channels), sum(self._channels), sum(self._channels)]
        self._owners = torch.arange(len(self._channels)).repeat_interleave(
            torch.tensor(self._channels, dtype=torch.int64)
        )
        self.elements = sum(self._sizes)
        self._sums = torch.zeros(self.elements, dtype=torch.float64)

    def add(self, statistics: Iterable[BatchStatistics]) -> None:
        """Adds the statistics of one micro-batch: of all batch norms in order, or none.

        Raises ValueError for those of another stage.
        """
        seen = list(statistics)
        if not seen:
            return
        if [one.name for one in seen] != [batch_norm.name for batch_norm in self._batch_norms]:
            raise ValueError("the statistics are not those of this stage's batch norms, in order")
        counts = torch.tensor([one.count for one in seen], dtype=torch.float64)
        count = counts[self._owners]
        mean = _side_by_side([one.mean for one in seen]) - self._shift()
        # One element has no unbiased variance (0 / 0): its own variance is 0.
        unbiased = _side_by_side([one.variance_unbiased for one in seen])
        variance = torch.where(count > 1, unbiased * ((count - 1) / count), 0.0)
        all_counts, means, squares = torch.split(self._sums, self._sizes)
        all_counts += counts
        means += count * mean
        squares += count * (variance + mean * mean)

    def to_vector(self) -> torch.Tensor:
        """The sums since the last `apply`, flat float64 [elements] on the CPU: add those of the replicas together."""
        return self._sums.clone()

    def apply(self, vector: torch.Tensor) -> None:
        """Moves the running buffers once by the group's summed vector, and starts the next round."""
        if vector.shape != (self.elements,) or vector.dtype != torch.float64:
            raise ValueError(f"the sums are {vector.dtype} {tuple(vector.shape)}; wanted float64 ({self.elements},)")
        if not self._batch_norms:
            return
        counts, means, squares = torch.split(vector, self._sizes)
        count = counts.clamp_min(1)[self._owners]
        centred = means / count
        variance = (squares / count - centred * centred).clamp_min(0.0) * (count / (count - 1).clamp_min(1))
        moves = zip(
            self._batch_norms,
            counts.tolist(),
            torch.split(centred + self._shift(), self._channels),
            torch.split(variance, self._channels),
            strict=True,
        )
        # One after the other: a batch norm that is used twice moves its buffers twice.
        for batch_norm, samples, new_mean, new_variance in moves:
            if samples > 0:
                self._move(batch_norm, new_mean, new_variance)
        self._sums.zero_()

    def _move(self, batch_norm: BatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
        momentum = 0.0 if batch_norm.momentum is None else batch_norm.momentum
        if batch_norm.num_batches_tracked is not None:
            tracked = self._buffers[batch_norm.num_batches_tracked]
            tracked += 1
            if batch_norm.momentum is None:
                momentum = 1.0 / float(tracked)
        for name, new in ((batch_norm.running_mean, mean), (batch_norm.running_var, variance)):
            running = self._buffers[name]
            # Rounded as PyTorch rounds it: 1 - 0.997 is 7 millionths off in float32, far above a unit in the last place.
            share = torch.tensor(momentum, dtype=running.dtype)
            kept = float(1 - share)
            running.copy_(kept * running.to("cpu", torch.float64) + float(share) * new)

    def _shift(self) -> torch.Tensor:
        """The running means, which don't move within a round."""
        return _side_by_side([self._buffers[batch_norm.running_mean] for batch_norm in self._batch_norms])


def _side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One flat float64 tensor on the CPU."""
    return torch.cat(list(tensors)).to("cpu", torch.float64)
