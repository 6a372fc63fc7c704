"""Algorithm 1: shares against exhaustive search, and what must hold of them always."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm_coordinator.planner.allocation import Group, share_samples


def group_of(device_seconds: list[list[float]], largest: list[list[int]], *, least: int = 1, stages: int = 1) -> Group:
    """One layer; device_seconds[d][y]: seconds of y samples. The same stage over and over, with its own memory limits."""
    table = np.zeros((len(device_seconds), len(device_seconds[0]), 2))
    table[:, :, 1] = device_seconds
    return Group(
        seconds=table,
        kinds=np.arange(len(device_seconds)),
        first=np.zeros(stages, dtype=np.int64),
        end=np.ones(stages, dtype=np.int64),
        largest=np.array(largest),
        least=np.full(stages, least),
    )


def exhaustive(device_seconds: list[list[float]], largest: list[int], least: int) -> float | None:
    """The smallest time of the slowest device over all shares; None where none is possible."""
    total = len(device_seconds[0]) - 1
    allowed = [[0, *range(least, min(limit, total) + 1)] for limit in largest]
    times = [
        max(row[y] for row, y in zip(device_seconds, shares, strict=True))
        for shares in itertools.product(*allowed)
        if sum(shares) == total
    ]
    return min(times, default=None)


def test_of_many_devices_as_many_take_part_as_the_least_batch_allows() -> None:
    """Twenty alike, of which sixteen can have two samples each; then two that hold too little, and one that is quicker."""
    alike = [float(samples) for samples in range(33)]
    shares = share_samples(group_of([alike] * 20, [[32] * 20], least=2))[0]
    assert sorted(shares) == [0] * 4 + [2] * 16
    quicker = [each / 2 for each in alike]
    shares = share_samples(group_of([alike] * 19 + [quicker], [[1, 1] + [32] * 18], least=3))[0]
    assert shares.sum() == 32
    assert set(shares[:2]) == {0}
    assert shares[19] > 3
    assert all(share == 0 or share >= 3 for share in shares)


@st.composite
def groups(draw: st.DrawFn, *, rising: bool) -> tuple[list[list[float]], list[int]]:
    """Seconds of 1 to 4 devices at 0 to B samples, and what their memory holds. rising: strictly with the samples."""
    total = draw(st.integers(1, 9))
    devices = draw(st.integers(1, 4))
    step = st.floats(0.01, 1.0)
    rows = []
    for _ in range(devices):
        steps = [0.0, *(draw(step) for _ in range(total))]
        rows.append(list(itertools.accumulate(steps)) if rising else steps)
    return rows, [draw(st.integers(0, total + 1)) for _ in range(devices)]


@settings(max_examples=200, deadline=None)
@given(groups(rising=True))
def test_equals_exhaustive_search_where_more_samples_take_longer(group: tuple[list[list[float]], list[int]]) -> None:
    rows, largest = group
    shares = share_samples(group_of(rows, [largest]))[0]
    best = exhaustive(rows, largest, 1)
    if best is None:
        assert not shares.any()
    else:
        assert max(row[y] for row, y in zip(rows, shares, strict=True)) <= best * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(groups(rising=False), st.integers(1, 3))
def test_shares_add_up_and_respect_memory_and_least_batch(
    group: tuple[list[list[float]], list[int]], least: int
) -> None:
    rows, largest = group
    total = len(rows[0]) - 1
    shares = share_samples(group_of(rows, [largest], least=least))[0]
    assert all(0 <= y <= limit for y, limit in zip(shares, largest, strict=True))
    assert all(y == 0 or y >= least for y in shares)
    assert shares.sum() == (0 if exhaustive(rows, largest, least) is None else total)


@settings(max_examples=50, deadline=None)
@given(groups(rising=True), st.data())
def test_many_stages_at_once_are_shared_like_each_alone(
    group: tuple[list[list[float]], list[int]], data: st.DataObject
) -> None:
    rows, largest = group
    limits = [largest, *(data.draw(st.permutations(largest)) for _ in range(3))]
    together = share_samples(group_of(rows, limits, stages=len(limits)))
    alone = [share_samples(group_of(rows, [limit]))[0] for limit in limits]
    assert together.tolist() == [shares.tolist() for shares in alone]


def test_shares_in_proportion_to_capacity() -> None:
    seconds = [[factor * y for y in range(13)] for factor in (1.0, 2.0, 4.0)]
    assert share_samples(group_of(seconds, [[12, 12, 12]]))[0].tolist() == [7, 3, 2]


def test_what_memory_clips_goes_to_the_others() -> None:
    seconds = [[factor * y for y in range(13)] for factor in (1.0, 2.0, 4.0)]
    assert share_samples(group_of(seconds, [[2, 12, 12]]))[0].tolist() == [2, 7, 3]


def test_off_loading_sees_that_a_curve_is_no_line() -> None:
    # By capacity at the whole micro-batch the two are alike; but the first takes its full time for one sample already.
    flat = [0.0] + [8.0] * 8
    line = [float(y) for y in range(9)]
    assert share_samples(group_of([flat, line], [[8, 8]]))[0].tolist() in ([0, 8], [4, 4])
    jump = [0.0, *(1.0 + y for y in range(1, 9))]
    slow = [3.0 * y for y in range(9)]
    shares = share_samples(group_of([jump, slow], [[8, 8]]))[0]
    assert max(jump[shares[0]], slow[shares[1]]) == 7.0
