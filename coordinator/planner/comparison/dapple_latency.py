"""DAPPLE's estimate of a round (PPoPP 2021, section 4): its length seen from the pivot stage, for many pipelines at once.

Stages and the links between them count alike, as S steps with F_s and B_s, forward and backward of a micro-batch; the
pivot Q is the step with the fewest bubbles in between:

    L = T_w + T_s + T_e
    T_w = sum of F_a for a <= Q                            until the pivot has its first micro-batch done
    T_s = (M - 1) (F_Q + B_Q)                              the pivot without a pause
    T_e = max over s of AR_s + (sum of B_a, s <= a <= Q)   what comes back in front of it, with all-reduces
                     or AR_s - (sum of B_a, Q <= a <= s)   behind it, where the all-reduce begins earlier

The pivot is looked for from the last step on: an earlier one takes over where its own T_s is longer than that of the
pivot so far and all the steps in between together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeswarm.model_costs import FloatArray


def round_latency(
    forward: Sequence[FloatArray], backward: Sequence[FloatArray], all_reduce: Sequence[FloatArray], micro_batches: int
) -> FloatArray:
    """L in seconds. Each sequence has one array a step, all of one shape; all_reduce is 0 for links."""
    ahead = np.stack(np.broadcast_arrays(*forward))
    back = np.stack(np.broadcast_arrays(*backward))
    reduce = np.stack(np.broadcast_arrays(*all_reduce))
    steps = len(ahead)
    both = ahead + back
    steady = (micro_batches - 1) * both
    pivot = np.full(ahead.shape[1:], steps - 1)
    of_pivot = steady[-1]
    between = np.zeros(ahead.shape[1:])
    for step in reversed(range(steps - 1)):
        takes_over = steady[step] > of_pivot + between
        pivot = np.where(takes_over, step, pivot)
        of_pivot = np.where(takes_over, steady[step], of_pivot)
        between = np.where(takes_over, 0.0, between + both[step])
    until = np.cumsum(ahead, axis=0)
    back_before = np.concatenate([np.zeros((1, *back.shape[1:])), np.cumsum(back, axis=0)])
    waiting = np.take_along_axis(until, pivot[np.newaxis], axis=0)[0]
    from_pivot = np.take_along_axis(back_before, pivot[np.newaxis], axis=0)[0]
    with_pivot = np.take_along_axis(back_before, pivot[np.newaxis] + 1, axis=0)[0]
    ending = np.full(pivot.shape, -np.inf)
    for step in range(steps):
        in_front = reduce[step] + with_pivot - back_before[step]
        behind = reduce[step] - (back_before[step + 1] - from_pivot)
        ending = np.maximum(ending, np.where(step <= pivot, in_front, behind))
    result: FloatArray = waiting + of_pivot + ending
    return result
