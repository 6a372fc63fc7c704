"""DAPPLE's planner: its estimate by hand and beside a simulated pipeline, its allotments, and whole plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.model_costs import FloatArray
from edgeswarm.profile import Network
from edgeswarm_coordinator.planner.comparison.dapple import allotments
from edgeswarm_coordinator.planner.comparison.dapple_latency import round_latency
from edgeswarm_coordinator.planner.planners import make_plan

from ..instances import make_instance


def steps(*values: float) -> list[FloatArray]:
    return [np.array([value]) for value in values]


def latency(forward: list[float], backward: list[float], all_reduce: list[float], micro_batches: int) -> float:
    return float(round_latency(steps(*forward), steps(*backward), steps(*all_reduce), micro_batches)[0])


def test_equal_stages_without_links_are_the_classic_bubble() -> None:
    """(M + P - 1)(f + b)."""
    assert latency([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], 5) == pytest.approx((5 + 3 - 1) * 3)


def test_the_slowest_step_is_the_pivot() -> None:
    """Stages of 1 + 1 around a link of 4 + 4: 4 rounds of the link without a pause, and the way in and out."""
    assert latency([1.0, 4.0, 1.0], [1.0, 4.0, 1.0], [0.0] * 3, 4) == pytest.approx(1 + 4 + 3 * 8 + 4 + 1)


def test_an_all_reduce_behind_the_pivot_begins_earlier() -> None:
    """The first stage is the pivot; the last one's all-reduce counts less the backwards from the pivot to it."""
    plain = latency([5.0, 1.0], [5.0, 1.0], [0.0, 0.0], 3)
    assert latency([5.0, 1.0], [5.0, 1.0], [0.0, 6.0], 3) == pytest.approx(plain)
    assert latency([5.0, 1.0], [5.0, 1.0], [0.0, 12.0], 3) == pytest.approx(plain - 5.0 - 6.0 + 12.0)
    assert latency([5.0, 1.0], [5.0, 1.0], [2.0, 0.0], 3) == pytest.approx(plain + 2.0)


positive = st.floats(0.1, 5.0)


@settings(max_examples=100)
@given(stages=st.lists(st.tuples(positive, positive), min_size=1, max_size=5), micro_batches=st.integers(1, 8))
def test_never_below_any_steps_own_work(stages: list[tuple[float, float]], micro_batches: int) -> None:
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    seconds = latency(forward, backward, [0.0] * len(stages), micro_batches)
    assert seconds >= max(micro_batches * (f + b) for f, b in stages) * (1 - 1e-9)


def test_allotments_by_hand() -> None:
    """Two rooms of three, one device of the first taken: two from the fresh room, from the used one, or from those in use."""
    assert allotments((1, 0), (3, 3), 2) == [(0, 2), (2, 0)]
    assert allotments((1, 1), (3, 3), 2) == [(2, 0), (1, 1)]
    assert allotments((0, 0), (3, 3), 4) == [(3, 1), (2, 2)]
    assert allotments((3, 2), (3, 3), 2) == []


@given(rooms=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3), count=st.integers(1, 6))
def test_allotments_take_what_is_free(rooms: list[tuple[int, int]], count: int) -> None:
    sizes = tuple(size for size, _ in rooms)
    taken = tuple(min(size, used) for size, used in rooms)
    found = allotments(taken, sizes, count)
    assert bool(found) == (sum(sizes) - sum(taken) >= count)
    for more in found:
        assert sum(more) == count
        assert all(0 <= m <= size - used for m, size, used in zip(more, sizes, taken, strict=True))


def test_a_group_stays_in_its_room() -> None:
    """Links between the rooms are a thousand times as slow; two heavy layers: one for each room."""
    instance = make_instance((4.0, 4.0), (1.0,) * 4, param_bytes=1000, output_bytes=1)
    rows = [[1e4 if (a < 2) == (b < 2) else 10.0 for b in range(4)] for a in range(4)]
    plan = make_plan(replace(instance, network=Network(0.0, tuple(map(tuple, rows)))), "dapple", 2)
    assert [stage.devices for stage in plan.stages] == [("a", "b"), ("c", "d")]
    assert [list(stage.shares.values()) for stage in plan.stages] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("planner", ["gpipe", "pipedream", "dapple"])
def test_planners_for_equal_devices_do_not_see_that_one_is_slow(planner: str) -> None:
    equal = make_plan(make_instance((1.0,) * 4, (2.0, 2.0), output_bytes=1), planner, 4)
    uneven = make_plan(make_instance((1.0,) * 4, (1.0, 3.0), output_bytes=1), planner, 4)
    assert equal.stages == uneven.stages
