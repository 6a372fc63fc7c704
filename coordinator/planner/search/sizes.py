"""Micro-batch sizes that the search may choose: few for the first look at everything, many for the moves after it."""

from __future__ import annotations

from ..micro_batches import micro_batch_sizes

FIRST_SIZES = 8
# Up to this mini-batch every size is looked at: a last micro-batch that is smaller than the others may suit a share.
EVERY_SIZE_UP_TO = 64


def first_sizes(mini_batch: int, *, least_batch: int) -> tuple[int, ...]:
    """Ascending, at most FIRST_SIZES, spread over all orders of magnitude."""
    return tuple(reversed(micro_batch_sizes(mini_batch, least_batch=least_batch, most=FIRST_SIZES)))


def all_sizes(mini_batch: int, *, least_batch: int) -> tuple[int, ...]:
    """Ascending: all there are where the mini-batch is small, else the balanced ones."""
    if mini_batch <= EVERY_SIZE_UP_TO:
        return tuple(size for size in range(1, mini_batch + 1) if _respects(size, mini_batch, least_batch))
    return balanced_sizes(mini_batch, least_batch=least_batch)


def balanced_sizes(mini_batch: int, *, least_batch: int) -> tuple[int, ...]:
    """Ascending: the smallest size for every number of micro-batches, and the usual ones that other planners try."""
    sizes = {-(-mini_batch // count) for count in range(1, mini_batch + 1)}
    sizes |= set(micro_batch_sizes(mini_batch, least_batch=least_batch))
    return tuple(sorted(size for size in sizes if _respects(size, mini_batch, least_batch)))


def _respects(size: int, mini_batch: int, least_batch: int) -> bool:
    rest = mini_batch % size
    return size >= least_batch and (rest == 0 or rest >= least_batch)
