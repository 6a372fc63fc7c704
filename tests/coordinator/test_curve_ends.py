"""Why curves end, as far as that can be told from what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm_coordinator.curve_ends import continued, ended_for_memory, is_outgrown, without_losses
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import Curve, Profiles


def curve(*points: tuple[int, float], asked: int = 256, memory_bytes: int = 1000) -> Curve:
    """points: samples, and seconds of a forward and backward together."""
    sizes = tuple(size for size, _ in points)
    halves = tuple(seconds / 2 for _, seconds in points)
    return Curve(sizes, halves, halves, asked, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("points", "wanted", "expected"),
    [
        ((), 1, True),
        (((1, 0.9),), 256, True),  # nothing says that two samples take longer
        (((1, 1.1),), 256, False),
        (((1, 0.1), (64, 0.4)), 256, True),
        (((1, 0.1), (64, 0.6)), 256, False),  # twice as many may have been too slow
        (((1, 0.1), (64, 0.4)), 64, False),
        (((1, 0.1), (256, 0.4)), 256, False),
    ],
)
def test_time_or_memory(points: tuple[tuple[int, float], ...], wanted: int, expected: bool) -> None:
    assert ended_for_memory(curve(*points), wanted=wanted) is expected


def test_clearly_more_is_a_quarter_more() -> None:
    short = curve((1, 0.1), (2, 0.1))
    assert not is_outgrown(short, memory_bytes=1250, wanted=256)
    assert is_outgrown(short, memory_bytes=1251, wanted=256)
    assert not is_outgrown(short, memory_bytes=5000, wanted=2)
    assert is_outgrown(replace(short, memory_bytes=0), memory_bytes=1, wanted=256)


@pytest.mark.parametrize(("now", "pace"), [(0.3, 1.5 / 1.2), (0.9, 1.0)])
def test_a_curve_goes_on_where_it_ended_at_the_pace_of_then(now: float, pace: float) -> None:
    """Where it took nearly four times as long, something was in the way."""
    before = replace(
        curve((1, 0.04), (4, 0.1), (8, 0.24), asked=8), peak_bytes=(1, 4, 8), rest_part=0.6, weights_part=0.5
    )
    after = replace(curve((1, 0.07), (8, now), (16, 2 * now), asked=16), peak_bytes=(2, 9, 16))
    joined = continued(before, after)
    assert joined.batch_sizes == (1, 4, 8, 16)
    assert joined.forward_seconds == pytest.approx((0.035, 0.05 * pace, now / 2, now))
    assert joined.peak_bytes == (2, 4, 9, 16)
    assert joined.relative_errors == ()
    assert (joined.asked, joined.rest_part, joined.weights_part) == (16, 0.6, 0.5)
    for nothing_further in (curve(asked=16), curve((1, 0.07), asked=16)):
        assert continued(before, nothing_further) == replace(before, asked=16)
    without_parts = replace(before, rest_part=1.0, weights_part=0.0)
    assert continued(without_parts, replace(after, rest_part=0.7, weights_part=0.4)).weights_part == 0.4


def test_a_second_measurement_that_got_less_far_takes_nothing_away() -> None:
    key, other = ("nano", "float32", "conv"), ("nano", "float32", "head")
    known = Profiles(curves={key: curve((1, 0.1), (8, 0.2)), other: curve()})
    again = curve((1, 0.3), memory_bytes=2000)
    further = curve((1, 0.1), (16, 0.2), memory_bytes=2000)
    kept = without_losses(Profiles(curves={key: again, other: again}, processes={"nano": ProcessCosts(1)}), known=known)
    assert kept.curves[key] == replace(known.curves[key], memory_bytes=2000)
    assert kept.curves[other] == again
    assert kept.processes == {"nano": ProcessCosts(1)}
    assert without_losses(Profiles(curves={key: further}), known=known).curves == {key: further}
    assert without_losses(Profiles(curves={key: curve()}), known=Profiles()).curves == {key: curve()}
