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
    """

    def __init__(self, batch_norms: Sequence[BatchNorm], buffers: Mapping[str, torch.Tensor]) -> None:
        self._batch_norms = tuple(batch_norms)
        self._buffers = buffers
        self._offsets: dict[str, int] = {}
        self.elements = 0
        for batch_norm in self._batch_norms:
            self._offsets[batch_norm.name] = self.elements
            self.elements += 1 + 2 * batch_norm.channels
        self._sums = torch.zeros(self.elements, dtype=torch.float64)
        self._by_name = {batch_norm.name: batch_norm for batch_norm in self._batch_norms}

    def add(self, statistics: Iterable[BatchStatistics]) -> None:
        """Adds the statistics of one micro-batch."""
        for seen in statistics:
            batch_norm = self._by_name[seen.name]
            mean = seen.mean.to("cpu", torch.float64) - self._shift(batch_norm)
            # One element has no unbiased variance (0 / 0): its own variance is 0.
            unbiased = seen.variance_unbiased.to("cpu", torch.float64)
            variance = unbiased * ((seen.count - 1) / seen.count) if seen.count > 1 else torch.zeros_like(unbiased)
            count, means, squares = self._parts(self._sums, batch_norm)
            count += seen.count
            means += seen.count * mean
            squares += seen.count * (variance + mean * mean)

    def to_vector(self) -> torch.Tensor:
        """The sums since the last `apply`, flat float64 [elements] on the CPU: add those of the replicas together."""
        return self._sums.clone()

    def apply(self, vector: torch.Tensor) -> None:
        """Moves the running buffers once by the group's summed vector, and starts the next round."""
        if vector.shape != (self.elements,) or vector.dtype != torch.float64:
            raise ValueError(f"the sums are {vector.dtype} {tuple(vector.shape)}; wanted float64 ({self.elements},)")
        shifts = {batch_norm.running_mean: self._shift(batch_norm) for batch_norm in self._batch_norms}
        for batch_norm in self._batch_norms:
            count, means, squares = self._parts(vector, batch_norm)
            samples = float(count)
            if samples > 0:
                centred = means / samples
                variance = (squares / samples - centred * centred).clamp_min(0.0) * (samples / max(samples - 1, 1))
                self._move(batch_norm, centred + shifts[batch_norm.running_mean], variance)
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
            running.copy_((1 - momentum) * running.to("cpu", torch.float64) + momentum * new)

    def _shift(self, batch_norm: BatchNorm) -> torch.Tensor:
        return self._buffers[batch_norm.running_mean].to("cpu", torch.float64)

    def _parts(self, vector: torch.Tensor, batch_norm: BatchNorm) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        start = self._offsets[batch_norm.name]
        middle = start + 1 + batch_norm.channels
        return vector[start : start + 1], vector[start + 1 : middle], vector[middle : middle + batch_norm.channels]
