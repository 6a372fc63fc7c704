"""Running statistics of batch normalisation, merged over micro-batches and replicas, moved once a round.

A stage leaves the running buffers alone; each forward pass yields count, mean and variance of its own samples. Sums of these
make the statistics of the whole mini-batch, the part between the means included:

    N = sum n_i      mean = sum n_i m_i / N      variance = sum n_i (v_i + m_i^2) / N - mean^2

The sums are taken in float64 of m_i less the running mean (the same on every replica), so that nothing cancels where
the mean is large against the deviation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from .values import BatchNorm


@dataclasses.dataclass(frozen=True)
class BatchStatistics:
    """What a stage's batch norms, in order, saw in one forward pass.

    counts: elements of each channel, by batch norm. means, then unbiased variances: [2 x channels of all], side by side.
    """

    counts: tuple[int, ...]
    means_and_variances: torch.Tensor


class StatisticsPlaces:
    """Makes the tensors into which the batch norms of a forward pass write what they see, zeros before.

    They lie side by side, the means of all before the variances of all, and are made and read in one go: a small device takes
    as long for an operation on a few numbers as on thousands.
    """

    def __init__(self, batch_norms: Sequence[BatchNorm], buffers: Mapping[str, torch.Tensor]) -> None:
        self._batch_norms = tuple(batch_norms)
        self._like = [buffers[one.running_mean] for one in batch_norms] + [
            buffers[one.running_var] for one in batch_norms
        ]
        self._sizes = [tensor.numel() for tensor in self._like]
        self._is_of_one_type = len({tensor.dtype for tensor in self._like}) == 1

    def number(self, batch_norm: str, which: int) -> int:
        """The place of a batch norm's mean (0) or variance (1) among the tensors of a pass."""
        names = [one.name for one in self._batch_norms]
        return which * len(names) + names.index(batch_norm)

    def make(self) -> tuple[torch.Tensor, ...]:
        """New for each pass: autograd keeps them for the backward, and refuses those that were written to since.

        So each has to count its own writes, which those of an ordinary split would share.
        """
        if not self._is_of_one_type:
            return tuple(map(torch.zeros_like, self._like))
        first = self._like[0]
        together = torch.zeros(sum(self._sizes), dtype=first.dtype, device=first.device)
        return torch.unsafe_split_with_sizes(together, self._sizes)

    def read(self, batch: int, places: Sequence[torch.Tensor]) -> BatchStatistics:
        """What a pass over so many samples left there."""
        counts = tuple(batch * one.elements_per_sample for one in self._batch_norms)
        return BatchStatistics(counts, torch.cat(list(places)))


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
        self._summed = torch.split(self._sums, self._sizes)
        self._shift: torch.Tensor | None = None
        self._momenta = _Momenta.of(self._batch_norms, buffers, self._owners)
        self._weights = _Weights.of((), self._owners)

    def add(self, statistics: BatchStatistics | None) -> None:
        """Adds the statistics of one micro-batch, or nothing.

        Raises ValueError for those of another stage.
        """
        if statistics is None:
            return
        channels = self._owners.numel()
        if len(statistics.counts) != len(self._channels) or statistics.means_and_variances.numel() != 2 * channels:
            raise ValueError("the statistics are not those of this stage's batch norms")
        if self._shift is None:
            self._shift = self._running_means()
        if self._weights.counts != statistics.counts:  # most micro-batches have as many samples
            self._weights = _Weights.of(statistics.counts, self._owners)
        weights = self._weights
        seen = statistics.means_and_variances.to("cpu", torch.float64)
        mean, variance = seen[:channels] - self._shift, seen[channels:] * weights.biased
        if weights.has_single:
            # One element has no unbiased variance (0 / 0): its own variance is 0.
            variance = torch.where(weights.each > 1, variance, 0.0)
        all_counts, means, squares = self._summed
        all_counts += weights.by_batch_norm
        means.addcmul_(weights.each, mean)
        squares.addcmul_(weights.each, variance.addcmul_(mean, mean))

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
        mean = centred + self._running_means()
        if self._momenta is not None and bool((counts > 0).all()):
            self._move_all(self._momenta, mean, variance)
        else:
            # One after the other: a batch norm that is used twice moves its buffers twice.
            new = zip(torch.split(mean, self._channels), torch.split(variance, self._channels), strict=True)
            for batch_norm, samples, (one_mean, one_variance) in zip(
                self._batch_norms, counts.tolist(), new, strict=True
            ):
                if samples > 0:
                    self._move(batch_norm, one_mean, one_variance)
        self._sums.zero_()
        self._shift = None

    def _move_all(self, momenta: _Momenta, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """As `_move` does it for each, in a few operations."""
        for names, new in (
            ([one.running_mean for one in self._batch_norms], mean),
            ([one.running_var for one in self._batch_norms], variance),
        ):
            running = [self._buffers[name] for name in names]
            before = torch.cat(running).to("cpu", torch.float64)
            moved = momenta.kept * before + momenta.share * new
            for buffer, values in zip(running, torch.split(moved, self._channels), strict=True):
                buffer.copy_(values)
        for one in self._batch_norms:
            if one.num_batches_tracked is not None:
                self._buffers[one.num_batches_tracked] += 1

    def _move(self, batch_norm: BatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
        momentum = 0.0 if batch_norm.momentum is None else batch_norm.momentum
        if batch_norm.num_batches_tracked is not None:
            tracked = self._buffers[batch_norm.num_batches_tracked]
            tracked += 1
            if batch_norm.momentum is None:
                momentum = 1.0 / float(tracked)
        for name, new in ((batch_norm.running_mean, mean), (batch_norm.running_var, variance)):
            running = self._buffers[name]
            kept, share = _kept_and_share(momentum, running.dtype)
            running.copy_(kept * running.to("cpu", torch.float64) + share * new)

    def _running_means(self) -> torch.Tensor:
        """Side by side; they don't move within a round."""
        means = [self._buffers[batch_norm.running_mean] for batch_norm in self._batch_norms]
        return torch.cat(means).to("cpu", torch.float64)


def _kept_and_share(momentum: float, dtype: torch.dtype) -> tuple[float, float]:
    """Of the old value and of the new one.

    Rounded as PyTorch rounds it: 1 - 0.997 is 7 millionths off in float32, far above a unit in the last place.
    """
    share = torch.tensor(momentum, dtype=dtype)
    return float(1 - share), float(share)


@dataclasses.dataclass(frozen=True)
class _Momenta:
    """What all batch norms' buffers move by at once: kept of the old value, share of the new one, by channel."""

    kept: torch.Tensor
    share: torch.Tensor

    @classmethod
    def of(
        cls, batch_norms: Sequence[BatchNorm], buffers: Mapping[str, torch.Tensor], owners: torch.Tensor
    ) -> _Momenta | None:
        """None where each has to move by itself: one that is used twice moves twice, and an average changes its momentum."""
        momenta = [one.momentum for one in batch_norms if one.momentum is not None]
        means = [buffers[one.running_mean] for one in batch_norms]
        variances = [buffers[one.running_var] for one in batch_norms]
        is_used_twice = len({one.running_mean for one in batch_norms}) < len(batch_norms)
        of_one_type = [mean.dtype for mean in means] == [variance.dtype for variance in variances]
        if not batch_norms or is_used_twice or len(momenta) < len(batch_norms) or not of_one_type:
            return None
        both = [_kept_and_share(momentum, mean.dtype) for momentum, mean in zip(momenta, means, strict=True)]
        kept, share = torch.tensor(both, dtype=torch.float64)[owners].unbind(1)
        return cls(kept, share)


@dataclasses.dataclass(frozen=True)
class _Weights:
    """What the counts of one forward pass weigh its sums with.

    by_batch_norm, each: the counts, of each batch norm and of each channel. biased: what makes a channel's variance of its
    unbiased one. has_single: a batch norm had one element a channel.
    """

    counts: tuple[int, ...]
    by_batch_norm: torch.Tensor
    each: torch.Tensor
    biased: torch.Tensor
    has_single: bool

    @classmethod
    def of(cls, counts: tuple[int, ...], owners: torch.Tensor) -> _Weights:
        by_batch_norm = torch.tensor(counts, dtype=torch.float64)
        each = by_batch_norm[owners] if counts else by_batch_norm
        return cls(counts, by_batch_norm, each, (each - 1) / each, 1 in counts)
