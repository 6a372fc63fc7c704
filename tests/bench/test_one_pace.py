from __future__ import annotations

import pytest

from bench.one_pace import at_one_pace
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import Curve, Profiles


def profiles(**paces: float) -> Profiles:
    """By kind of hardware what the reference work took; the layer is slower by as much."""
    return Profiles(
        curves={
            (key, "float32", "a"): Curve((1, 2), (pace, 2 * pace), (2 * pace, 4 * pace), 2)
            for key, pace in paces.items()
        },
        processes={key: ProcessCosts(base_bytes=1, reference_cpu_seconds=pace) for key, pace in paces.items()},
    )


def test_what_a_slow_machine_added_is_the_same_for_all() -> None:
    level = at_one_pace(profiles(nano=1.0, nx=4.0))
    for key in ("nano", "nx"):
        curve = level.curves[key, "float32", "a"]
        assert curve.forward_seconds == pytest.approx((2.0, 4.0))
        assert curve.backward_seconds == pytest.approx((4.0, 8.0))
        assert level.processes[key].reference_cpu_seconds == pytest.approx(2.0)


def test_twice_is_no_more_than_once() -> None:
    once = at_one_pace(profiles(nano=1.0, nx=4.0))
    twice = at_one_pace(once)
    assert twice.curves["nx", "float32", "a"].forward_seconds == pytest.approx(
        once.curves["nx", "float32", "a"].forward_seconds
    )


def test_an_unknown_pace_stays_as_it_was() -> None:
    some = profiles(nano=1.0, tx2=4.0)
    some.update(Profiles(curves={("gpu", "float32", "a"): Curve((1,), (7.0,), (7.0,), 1)}))
    some.processes["gpu"] = ProcessCosts(base_bytes=1)
    level = at_one_pace(some)
    assert level.curves["gpu", "float32", "a"].forward_seconds == (7.0,)
    assert level.processes["gpu"] == some.processes["gpu"]
    unknown = Profiles(processes={"gpu": ProcessCosts(base_bytes=1)})
    assert at_one_pace(unknown) == unknown
